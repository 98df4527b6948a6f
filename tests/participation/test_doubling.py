"""Doubling: sizes and stages against the definition, pools per round and per stage, schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import info_of, random_times

from fedjax_srp import participation

KEY = jax.random.key(0)


def run(policy, num_clients, num_rounds, times=None):
    """The cohorts of a run."""
    times = random_times(num_clients) if times is None else times

    @jax.jit
    def step(key, state, round):
        cohort, state = policy.select(key, state, times)
        return cohort, policy.update(state, info_of(round, cohort))

    state, cohorts = policy.init(KEY, num_clients), []
    for round in range(num_rounds):
        cohort, state = step(
            jax.random.fold_in(KEY, round), state, jnp.asarray(round, jnp.int32)
        )
        cohorts.append(cohort)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *cohorts)


def test_pools_per_round_differ_and_equal_those_of_uniform():
    policy = participation.Doubling(4, 10, pool=8)
    times = random_times(40)
    cohorts = run(policy, 40, 6, times)
    assert len({frozenset(ids.tolist()) for ids in cohorts.client_ids}) == 6
    # Equal keys draw equal pools under every policy, so that comparisons have the same clients.
    uniform = participation.Uniform(8)
    for round, ids in enumerate(cohorts.client_ids):
        np.testing.assert_array_equal(
            uniform.select(jax.random.fold_in(KEY, round), (), times)[0].client_ids, ids
        )


def test_pools_per_stage_are_constant_within_a_stage():
    cohorts = run(participation.Doubling(2, [3, 0, 4], pool=20, redraw="stage"), 100, 12)
    pools = {stage: set() for stage in (0, 2, 4)}
    for stage, ids in zip(cohorts.stage, cohorts.client_ids, strict=True):
        pools[int(stage)].add(frozenset(ids.tolist()))
    assert [len(pool) for pool in pools.values()] == [1, 1, 1]
    assert len(set.union(*pools.values())) == 3


def test_pools_per_stage_depend_on_the_run_key():
    policy = participation.Doubling(2, 3, pool=10, redraw="stage")
    times = random_times(100)
    first, second = (
        policy.select(KEY, policy.init(jax.random.key(i), 100), times)[0].client_ids
        for i in (1, 2)
    )
    assert set(first.tolist()) != set(second.tolist())


@pytest.mark.parametrize(
    ("rounds_per_stage", "stages"),
    [
        (3, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
        ([0, 0, 2], [2, 2] + [3] * 10),
        (np.array([1, 2, 3]), [0, 1, 1, 2, 2, 2] + [3] * 6),
        ([1, 2**31 - 1], [0] + [1] * 11),
        (2**31 - 1, [0] * 12),
    ],
    ids=str,
)
def test_schedules(rounds_per_stage, stages):
    cohorts = run(participation.Doubling(3, rounds_per_stage), 20, 12)  # 3, 6, 12, 20
    assert cohorts.stage.tolist() == stages
    assert cohorts.size.tolist() == [[3, 6, 12, 20][stage] for stage in stages]
