"""Impossible cohorts and times, which show only while a run computes, are refused with client and round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.contracts import DATA, policy_of
from reference.small import algorithm_of, refusal, scripted, simulate

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput, ClientTimes, Cohort
from fedjax_srp.contract.checks import check_cohorts
from fedjax_srp.contract.faults import CohortFault
from fedjax_srp.rounds.cohort import cohort_fault

TIMES = ClientTimes(jnp.ones(4), jnp.ones(4))
COMING = TIMES._replace(
    available=jnp.array([1, 1, 0, 1], bool),
    stays=jnp.array([2.0, 0.5, 9, 9]),
    wait=jnp.zeros(()),
)


@jax.jit
def fault_of(times, ids, size, work, asked):
    return cohort_fault(Cohort(ids, size, work, jnp.int32(0), asked=asked), times)


@pytest.mark.parametrize(
    ("ids", "size", "more", "words"),
    [
        ([0, 1, 1], 2, {}, None),  # the last one is padding
        ([0, 7, -1], 1, {"work": [1, -1, -1]}, None),
        ([0, 1, 2], 0, {}, "its size is 0, it must be"),
        ([0, 1, 2], 4, {}, "its size is 4, it must be"),
        ([0, -1, 2], 2, {}, "client -1 does not exist"),
        ([0, 4, 2], 2, {}, "client 4 does not exist"),
        ([2, 0, 2], 3, {}, "client 2 is in it more than once"),
        ([2, 0, 3], 3, {"work": [1, 1, -1]}, "client 3 has negative work"),
        ([2, 0, 3], 3, {"work": [0, 0, 0]}, None),
        ([0, 1, 2], 2, {"asked": 1}, "it asked 1 clients"),
        ([0, 1, 2], 2, {"asked": 4}, "it asked 4 clients"),
        ([0, 1, 2], 2, {"asked": 2}, None),
        ([0, 1, 1], 1, {"asked": 3}, "client 1 is in it more than once"),
        ([0, 1, 4], 1, {"asked": 3}, "client 4 does not exist"),
        ([0, 1, 3], 1, {"asked": 3, "work": [1, 1, -1]}, "client 3 has negative work"),
        ([0, 1, 2], 0, {"times": COMING}, None),
        ([0, 1, 2], 1, {"times": COMING, "asked": 3}, "client 2 is not available"),
        (
            [0, 1, 3],
            1,
            {"times": COMING, "asked": 3},
            None,
        ),  # client 1 leaves early and does not report
        (
            [0, 1, 3],
            2,
            {"times": COMING, "asked": 3},
            "client 1 leaves before its work is done",
        ),
        (
            [0, 3, 1],
            2,
            {"times": COMING, "asked": 3, "work": [3, 3, 1]},
            "client 0 leaves before its work is done",
        ),
    ],
)
def test_impossible_cohorts(ids, size, more, words):
    work, asked = jnp.array(more.get("work", [1, 1, 1]), jnp.int32), more.get("asked")
    asked = None if asked is None else jnp.int32(asked)
    faults = fault_of(
        more.get("times", TIMES), jnp.array(ids, jnp.int32), jnp.int32(size), work, asked
    )[None]
    if words is None:
        check_cohorts(policy_of(), faults, 7)
    else:
        message = refusal(check_cohorts, policy_of(), faults, 7)
        assert message.startswith(f"policy 'mine': the cohort of round 7: {words}")


def test_the_first_fault_of_all_seeds_is_named():
    faults = np.zeros((3, 4, 2), int)  # seeds, rounds 11 to 14
    faults[0, 3], faults[1, 2], faults[2, 2] = (1, 9), (2, 5), (3, 6)
    assert "the cohort of round 13: client 5 does not exist" in refusal(
        check_cohorts, policy_of(), faults, 11
    )


def test_rounds_are_counted_from_the_first_of_the_run():
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(value)
    )

    @srp.part
    class Backwards(srp.Clock):
        """Its times are negative in the fifth round."""

        def init(self, key, num_clients):
            return jnp.int32(1)

        def sample(self, key, state, now):
            times = jnp.where(state == 5, -1.0, 1.0) * jnp.ones(DATA.num_clients)
            return ClientTimes(jnp.ones_like(times), times), state + 1

    def refused(**options):
        return refusal(
            simulate,
            algorithm,
            DATA,
            num_rounds=6,
            eval_every=2,
            evaluations=(),
            **options,
        )

    twice = scripted([[0, 1]] * 4 + [[3, 3]] + [[0, 1]])
    assert "the cohort of round 5: client 3 is in it more than once" in refused(
        participation=twice
    )
    assert "the time of round 5 is -1.0; times must be finite" in refused(
        clock=Backwards()
    )


@pytest.mark.parametrize("fault", [*CohortFault][1:])
def test_every_fault_has_words_with_its_number(fault):
    assert " 7 " in fault.describe(7).replace(",", " ")
