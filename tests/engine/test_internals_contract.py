"""Checks of cohorts, what a check traces, and peaks of memory counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.contracts import (
    policy_of,
)
from reference.small import (
    algorithm_of,
    numbers,
    refusal,
)

from fedjax_srp import ClientOutput, ClientTimes, Cohort
from fedjax_srp.contract.checks import check_algorithm, check_cohorts
from fedjax_srp.contract.peak_memory import peak_bytes
from fedjax_srp.participation.cohorts import jobs_of
from fedjax_srp.rounds.cohort import cohort_fault


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda x: jnp.exp(x) + 1, 100),  # in the memory of the first result
        (lambda x: jnp.exp(x) @ jnp.ones((100, 50)), 150),
        (lambda x: jnp.sum(jnp.exp(x)), 100),
        (
            lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(y) ** 2))(x),
            200,
        ),  # sine and cosine
        (
            lambda x: jax.lax.scan(lambda y, _: (jnp.exp(y) + 1, None), x, length=3)[0],
            100,
        ),  # in place
        (
            lambda x: jax.lax.while_loop(
                lambda y: y[0] < 3, lambda y: y @ jnp.ones((100, 100)), x
            ),
            200,
        ),
        (
            lambda x: jax.lax.scan(lambda y, _: (y + 1, y), x, length=3)[1],
            500,
        ),  # and what is stacked
    ],
)
def test_peaks_counted_by_hand(function, numbers):
    assert peak_bytes(jax.make_jaxpr(function)(jnp.ones(100))) == 4 * numbers


TIMES = ClientTimes(jnp.ones(4), jnp.ones(4))


COMING = TIMES._replace(
    available=jnp.array([1, 1, 0, 1], bool),
    stays=jnp.array([2.0, 0.5, 9, 9]),
    wait=jnp.zeros(()),
)


@jax.jit
def fault_of(times, ids, size, work, asked, begins):
    cohort = Cohort(ids, size, work, jnp.int32(0), asked=asked)
    if begins is not None:
        cohort = cohort._replace(jobs=jobs_of(begins, jnp.zeros(())))
    return cohort_fault(cohort, times)


@pytest.mark.parametrize(
    ("ids", "size", "more", "words"),
    [
        ([0, 1, 1], 2, {}, None),  # the last one is padding
        ([0, 1, 2], 0, {}, "its size is 0, it must be"),
        ([0, -1, 2], 2, {}, "client -1 does not exist"),
        ([0, 4, 2], 2, {}, "client 4 does not exist"),
        ([2, 0, 2], 3, {}, "client 2 is in it more than once"),
        ([2, 0, 3], 3, {"work": [1, 1, -1]}, "client 3 has negative work"),
        ([0, 1, 2], 2, {"asked": 1}, "it asked 1 clients"),
        ([0, 1, 1], 1, {"asked": 3}, "client 1 is in it more than once"),
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
        # a participant may have left since it began its job
        ([2, 1, 0], 2, {"times": COMING, "begins": [1, 1, 0, 1]}, None),
        (
            [0, 1, 3],
            2,
            {"times": COMING, "begins": [1, 0, 1, 0]},
            "client 2 is not available",
        ),
    ],
)
def test_impossible_cohorts(ids, size, more, words):
    work, asked = jnp.array(more.get("work", [1, 1, 1]), jnp.int32), more.get("asked")
    asked = None if asked is None else jnp.int32(asked)
    begins = None if "begins" not in more else jnp.array(more["begins"], bool)
    times, ids = more.get("times", TIMES), jnp.array(ids, jnp.int32)
    faults = fault_of(times, ids, jnp.int32(size), work, asked, begins)[None]
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


def test_the_check_traces_a_client_once_and_computes_nothing():
    """Its cost does not depend on the number of clients, batches or devices."""
    calls = []

    def client(key, broadcast, state, value, context):
        calls.append("traced")
        jax.debug.callback(lambda value: calls.append("computed"), value)
        return ClientOutput(value)

    check_algorithm(algorithm_of(client), numbers(*np.arange(50)), ("value",))
    jax.effects_barrier()
    assert calls == ["traced"]
