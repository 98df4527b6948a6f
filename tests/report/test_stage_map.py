"""Participants derived from times, against the cohorts that policies selected."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from report.made_up import made

import fedjax_srp as srp
from fedjax_srp.lab.report import participation_map as stage_map

CLIENTS, ROUNDS = 12, 9
EXPONENTIAL = srp.clocks.Exponential(1.0)


def play(policy, clock):
    """Rounds of a policy without training: their history, and the participants as (rounds, clients) bool."""
    key = jax.random.key(3)
    clock_state, state = clock.init(key, CLIENTS), policy.init(key, CLIENTS)
    took_part, times, stages = np.zeros((ROUNDS, CLIENTS), bool), [], []
    for place in range(ROUNDS):
        drawn, clock_state = clock.sample(
            jax.random.fold_in(key, place), clock_state, jnp.zeros(())
        )
        cohort, state = policy.select(jax.random.fold_in(key, place), state, drawn)
        ids = np.asarray(cohort.client_ids)[: int(cohort.size)]
        took_part[place, ids] = True
        times.append(np.asarray(drawn.realised)[ids].max())
        stages.append(int(cohort.stage))
        info = types.SimpleNamespace(
            round=jnp.int32(place), stage=cohort.stage, cohort_size=cohort.size
        )
        state = policy.update(state, info)
    sizes = took_part.sum(1)
    fields = {
        "compute_time": times,
        "cohort_size": sizes,
        "stage": stages,
        "client_time": np.asarray(drawn.expected),
    }
    return made("srpfl", 0, ROUNDS, CLIENTS, **fields), took_part


FASTEST, FIXED, DYNAMIC = (
    srp.participation.Fastest(5),
    srp.clocks.Fixed(EXPONENTIAL),
    srp.clocks.Dynamic(EXPONENTIAL),
)
KNOWN = {
    "doubling": (srp.participation.Doubling(initial=2, rounds_per_stage=3), FIXED),
    "fastest": (FASTEST, FIXED),
    "full": (srp.participation.Full(), DYNAMIC),
}


@pytest.mark.parametrize(("policy", "clock"), KNOWN.values(), ids=KNOWN)
def test_the_fastest_are_known_by_the_time_of_a_round_and_all_under_any_clock(
    policy, clock
):
    history, took_part = play(policy, clock)
    by_speed = np.argsort(history.client_time, kind="stable")
    np.testing.assert_array_equal(stage_map.shares(history), took_part[:, by_speed].T)


def test_there_is_no_map_if_times_prove_nothing():
    random_cohorts, _ = play(srp.participation.Uniform(4), FIXED)
    random_times, _ = play(FASTEST, DYNAMIC)
    equal_times, _ = play(FASTEST, srp.clocks.Fixed(srp.clocks.Constant(1.0)))
    assert [
        stage_map.shares(history)
        for history in (random_cohorts, random_times, equal_times)
    ] == [None] * 3


def test_many_clients_and_rounds_are_grouped():
    history = made("srpfl", 1, 730, 250)
    took_part = np.arange(250)[:, None] < history.cohort_size
    columns = np.array_split(np.arange(730), stage_map.MAX_COLUMNS)
    expected = [
        [took_part[np.ix_(clients, rounds)].mean() for rounds in columns]
        for clients in np.array_split(np.arange(250), stage_map.MAX_BANDS)
    ]
    np.testing.assert_allclose(stage_map.shares(history), expected, atol=1e-6)
