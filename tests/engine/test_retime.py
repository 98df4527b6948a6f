"""Times of a run drawn anew for another clock."""

import dataclasses

import jax
import numpy as np
import pytest
from reference.small import algorithm_of, numbers, refused

import fedjax_srp as srp

DATA = numbers(3.0, -1.0, 4.0, 1.5, -5.0, 9.0)
FIXED = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
OTHER = "random"
DEVICES = srp.clocks.Devices(compute=1e9, downlink=1e6, uplink=1e6)
ELSEWHERE = "other clients may take part than in the run; train it anew"
GIVEN = {"num_rounds": 4, "eval_every": 2, "progress": False}


MEAN = algorithm_of(lambda key, w, state, value, context: srp.ClientOutput(w + value))


def run_of(policy, clock="fixed", **more):
    given = GIVEN | {"participation": policy, "clock": clock} | more
    return srp.simulate(MEAN, DATA, key=jax.random.key(3), **given)


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


def halves(first, time=5.0):
    """A clock under which half of the clients can take part in each round, `first` the lower or the upper ones.

    The other half can where a round begins 5 s later; it lasts for `time`.
    """
    starts = np.where(np.arange(6) // 3 == first, 0.0, 5.0)[:, None]
    fixed = srp.clocks.Fixed(srp.clocks.Constant(time))
    return srp.clocks.Available(fixed, srp.clocks.Intervals(starts, starts + 5, 10.0))


@srp.part
class Second(srp.participation.Full):
    """Everybody, by another rule that the package does not know."""


@pytest.mark.usefixtures("no_rounds")  # refused by its record
@pytest.mark.parametrize(
    ("policy", "given", "message"),
    [
        (srp.participation.Doubling(2), {}, "'doubling' may depend on speeds; train"),
        (srp.participation.Fastest(2), {}, "'fastest' may depend on speeds; train"),
        (Second(), {}, "may depend on speeds; train"),
        (srp.participation.Full(), {"time_limit": 1e9}, "a time_limit ends it"),
    ],
)
def test_runs_whose_cohorts_or_end_depend_on_speeds_are_refused(policy, given, message):
    with refused(f"^history=.*{message}"):
        srp.retime(run_of(policy, **given), DATA, OTHER)


@pytest.mark.parametrize(
    ("given", "clock", "message"),
    [
        (
            {},
            srp.clocks.Available(FIXED, srp.clocks.Markov(on=1.0, off=4.0)),
            ELSEWHERE,
        ),
        # as many clients in every round, and as many rounds for each
        ({"clock": halves(0)}, halves(1), ELSEWHERE),
        # when clients came and went followed from the work of its rounds
        (
            {"clock": dataclasses.replace(halves(0), clock=DEVICES)},
            halves(0, time=1.0),
            ELSEWHERE,
        ),
        ({}, DEVICES, "its times depend on the work of a round; train"),
    ],
)
def test_runs_whose_training_depends_on_the_clock_are_refused(given, clock, message):
    with refused(f"^clock=.*{message}"):
        srp.retime(run_of(srp.participation.Full(), **given), DATA, clock)


@pytest.mark.parametrize("fact", ["cohort_size", "rounds_taken"])
def test_other_cohorts_are_refused_by_either_sign(fact):
    """Equally many but other clients differ in the second, the same ones in other rounds in the first."""
    run = run_of(srp.participation.Full())
    changed = getattr(run, fact) + np.array([1, -1] + [0] * (len(getattr(run, fact)) - 2))
    with refused(f"^clock=.*{ELSEWHERE}"):
        srp.retime(dataclasses.replace(run, **{fact: changed}), DATA, OTHER)


def test_other_data_than_those_of_the_run_are_told():
    run = run_of(srp.participation.Full())
    fewer = numbers(3.0, -1.0, 4.0, 1.5, -5.0)
    with refused("data=.* has 5 clients, and the run of `history` had 6; give the data"):
        srp.retime(run, fewer, OTHER)
    others = numbers(3.0, -1.0, 4.0, 1.5, 9.0, -5.0)
    with pytest.warns(UserWarning, match="^data: have checksum .*times may") as caught:
        srp.retime(run, others, OTHER)
    assert caught[0].filename == __file__
