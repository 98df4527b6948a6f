"""Times of a run drawn anew for another clock."""

import dataclasses

import jax
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp

DATA = srp.data.load("digits", num_clients=6, classes_per_client=3, max_examples=8)
OTHER = "random"
GIVEN = {"num_rounds": 4, "eval_every": 2, "progress": False}


def run_of(policy, clock="fixed", **more):
    model = srp.models.MLP(DATA.example_shape, DATA.num_classes, hidden=(4,))
    method = srp.algorithms.FedAvg(model)
    key = jax.random.key(3)
    given = GIVEN | {"participation": policy, "clock": clock} | more
    return srp.simulate(method, DATA, key=key, **given)


@pytest.mark.parametrize(
    "policy",
    [srp.participation.Full(), srp.participation.Uniform(3)],
    ids=["full", "pool"],
)
def test_a_retimed_run_is_the_run_under_the_other_clock(policy):
    run = run_of(policy)
    found = srp.retime(run, DATA, OTHER)
    real = run_of(policy, OTHER)
    np.testing.assert_array_equal(found.compute_time, real.compute_time)
    np.testing.assert_array_equal(found.client_time, real.client_time)
    np.testing.assert_array_equal(found.accuracy, run.accuracy)
    assert found.config["clock"] == real.config["clock"]
    assert not np.array_equal(found.compute_time, run.compute_time)
    back = srp.retime(found, DATA, "fixed")
    np.testing.assert_array_equal(back.compute_time, run.compute_time)


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
