"""Who took part, told from times: against cohorts that policies really chose."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from report.made_up import made

import fedjax_srp as srp
from fedjax_srp.report import stage_map

CLIENTS, ROUNDS = 12, 9
EXPONENTIAL = srp.clocks.Exponential(1.0)


def played(policy, clock):
    """The rounds of a policy without training: what a history has of them, and (rounds, clients) who took part."""
    key = jax.random.key(3)
    clock_state, state = clock.init(key, CLIENTS), policy.init(key, CLIENTS)
    mask, times, stages = np.zeros((ROUNDS, CLIENTS), bool), [], []
    for place in range(ROUNDS):
        drawn, clock_state = clock.sample(jax.random.fold_in(key, place), clock_state, jnp.zeros(()))
        cohort, state = policy.select(jax.random.fold_in(key, place), state, drawn)
        ids = np.asarray(cohort.client_ids)[: int(cohort.size)]
        mask[place, ids] = True
        times.append(np.asarray(drawn.realised)[ids].max())
        stages.append(int(cohort.stage))
        info = types.SimpleNamespace(round=jnp.int32(place), stage=cohort.stage, cohort_size=cohort.size)
        state = policy.update(state, info)
    sizes = mask.sum(1)
    fields = {"compute_time": times, "cohort_size": sizes, "stage": stages, "client_time": np.asarray(drawn.expected)}
    return made("srpfl", 0, ROUNDS, CLIENTS, **fields), mask


POLICIES = {
    "doubling": srp.participation.Doubling(initial=2, rounds_per_stage=3),
    "fastest": srp.participation.Fastest(5),
    "full": srp.participation.Full(),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_fastest_are_known_by_the_time_of_a_round(policy):
    history, mask = played(policy, srp.clocks.Fixed(EXPONENTIAL))
    by_speed = np.argsort(history.client_time, kind="stable")
    np.testing.assert_array_equal(stage_map.shares(history), mask[:, by_speed].T)


def test_what_times_do_not_tell_is_not_guessed():
    by_chance, _ = played(srp.participation.Uniform(4), srp.clocks.Fixed(EXPONENTIAL))
    afresh, _ = played(POLICIES["fastest"], srp.clocks.Dynamic(EXPONENTIAL))
    alike, _ = played(POLICIES["fastest"], srp.clocks.Fixed(srp.clocks.Constant(1.0)))
    assert [stage_map.shares(history) for history in (by_chance, afresh, alike)] == [None] * 3


def test_all_are_known_whatever_the_clock():
    history, mask = played(POLICIES["full"], srp.clocks.Dynamic(EXPONENTIAL))
    np.testing.assert_array_equal(stage_map.shares(history), mask.T)


def test_many_clients_and_rounds_are_put_together():
    history = made("srpfl", 1, 730, 250)
    mask = np.arange(250)[:, None] < history.cohort_size
    columns = np.array_split(np.arange(730), stage_map.MAX_COLUMNS)
    expected = [
        [mask[np.ix_(clients, rounds)].mean() for rounds in columns]
        for clients in np.array_split(np.arange(250), stage_map.MAX_BANDS)
    ]
    np.testing.assert_allclose(stage_map.shares(history), expected, atol=1e-6)
