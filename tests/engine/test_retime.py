"""Times of a run drawn anew for another clock."""

import dataclasses

import jax
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp

DATA = srp.data.load("digits", num_clients=6, classes_per_client=3, max_examples=8)
FIXED = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
OTHER = "random"
GIVEN = {"num_rounds": 4, "eval_every": 2, "progress": False}


def run_of(policy, clock="fixed", **more):
    model = srp.models.MLP(DATA.example_shape, DATA.num_classes, hidden=(4,))
    method = srp.algorithms.FedAvg(model)
    key = jax.random.key(3)
    given = GIVEN | {"participation": policy, "clock": clock} | more
    return srp.simulate(method, DATA, key=key, **given)


def times_of(history):
    """Everything in a history that a clock decides."""
    wasted = history.metrics.get("wasted_time")
    return [history.compute_time, history.client_time, wasted, history.config["clock"]]


@pytest.mark.parametrize(
    ("policy", "clock", "other"),
    [
        (srp.participation.Full(), FIXED, OTHER),
        (srp.participation.Uniform(3), FIXED, OTHER),
        (
            srp.participation.Full(),
            srp.clocks.Failing(FIXED, rate=0.5),
            srp.clocks.Failing(dataclasses.replace(FIXED, work=7.0), rate=0.5),
        ),
    ],
    ids=["full", "pool", "failing"],
)
def test_a_retimed_run_is_the_run_under_the_other_clock(policy, clock, other):
    run = run_of(policy, clock)
    found = srp.retime(run, DATA, other)
    real = run_of(policy, other)
    np.testing.assert_equal(times_of(found), times_of(real))
    np.testing.assert_array_equal(found.accuracy, run.accuracy)
    assert not np.array_equal(found.compute_time, run.compute_time)
    back = srp.retime(found, DATA, clock)
    np.testing.assert_equal(times_of(back), times_of(run))


def halves(first):
    """A clock under which half of the clients can take part in each round, `first` the lower or the upper ones."""
    starts = np.where(np.arange(6) // 3 == first, 0.0, 5.0)[:, None]
    five = srp.clocks.Fixed(srp.clocks.Constant(5.0))
    return srp.clocks.Available(five, srp.clocks.Intervals(starts, starts + 5, 10.0))


@srp.part
class Second(srp.participation.Full):
    """Everybody, by another rule that the package does not know."""


@pytest.mark.parametrize(
    ("policy", "given", "clock", "message"),
    [
        (
            srp.participation.Doubling(2),
            {},
            OTHER,
            "'doubling' may depend on speeds; train",
        ),
        (
            srp.participation.Fastest(2),
            {},
            OTHER,
            "'fastest' may depend on speeds; train",
        ),
        (Second(), {}, OTHER, "may depend on speeds; train"),
        (srp.participation.Full(), {"time_limit": 1e9}, OTHER, "a time_limit ends it"),
        (
            srp.participation.Full(),
            {},
            srp.clocks.Available(
                srp.clocks.Fixed(srp.clocks.Exponential(1.0)),
                srp.clocks.Markov(on=1.0, off=4.0),
            ),
            "clock=.*other clients take part than in the run; train it anew",
        ),
        (  # as many clients in every round, and as many rounds for each
            srp.participation.Full(),
            {"clock": halves(0)},
            halves(1),
            "clock=.*other clients take part than in the run; train it anew",
        ),
        (
            srp.participation.Full(),
            {},
            srp.clocks.Devices(compute=1e9, downlink=1e6, uplink=1e6),
            "its times depend on the work of a round; train",
        ),
    ],
)
def test_runs_whose_training_depends_on_the_clock_are_refused(
    policy, given, clock, message
):
    with refused(f"^(history|clock)=.*{message}"):
        srp.retime(run_of(policy, **given), DATA, clock)


@pytest.mark.parametrize("fact", ["cohort_size", "rounds_taken"])
def test_other_cohorts_are_refused_by_either_sign(fact):
    """Equally many but other clients differ in the second, the same ones in other rounds in the first."""
    run = run_of(srp.participation.Full())
    changed = getattr(run, fact) + np.array([1, -1] + [0] * (len(getattr(run, fact)) - 2))
    with refused("clock=.*other clients take part than in the run; train it anew"):
        srp.retime(dataclasses.replace(run, **{fact: changed}), DATA, OTHER)


def test_other_data_than_those_of_the_run_are_told():
    run = run_of(srp.participation.Full())
    sizes = {"classes_per_client": 3, "max_examples": 8}
    fewer = srp.data.load("digits", num_clients=5, **sizes)
    with refused("data=.* has 5 clients, and the run of `history` had 6; give the data"):
        srp.retime(run, fewer, OTHER)
    others = srp.data.load("digits", num_clients=6, seed=1, **sizes)
    with pytest.warns(UserWarning, match="^data: have checksum .*times may") as caught:
        srp.retime(run, others, OTHER)
    assert caught[0].filename == __file__
