"""Doubling: sizes and stages against the definition, pools per round and per stage, schedules, no recompilation."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import info_of, random_times, ranked

from fedjax_srp import participation
from fedjax_srp.participation.cohorts import stage_sizes

KEY = jax.random.key(0)


def run(policy, num_clients, num_rounds, times=None):
    """The cohorts of a run, with one trace for all rounds and stages."""
    times = random_times(num_clients) if times is None else times
    chex.clear_trace_counter()  # it counts by line of code, not by function object

    @jax.jit
    @chex.assert_max_traces(n=1)
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


def stages_by_hand(initial, pool, rounds_per_stage, num_rounds):
    """The stage of every round, from the definition in the docstring."""
    last = 0
    while initial * 2**last < pool:
        last += 1
    if isinstance(rounds_per_stage, int):
        rounds_per_stage = [rounds_per_stage] * last
    played = [
        r
        for r, n in enumerate(rounds_per_stage)
        if r < last
        for _ in range(min(n, num_rounds))
    ]
    return (played + [last] * num_rounds)[:num_rounds]


@pytest.mark.parametrize("by", ["realised", "expected"])
def test_the_pool_is_ranked_by_the_chosen_times(by):
    times = random_times(30)
    cohorts = run(participation.Doubling(2, 3, pool=8, by=by), 30, 6, times)
    for ids in cohorts.client_ids:
        assert ids.tolist() == ranked(getattr(times, by), ids)


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


@st.composite
def schedules(draw):
    num_clients = draw(st.sampled_from([1, 9]))
    pool = draw(st.none() | st.sampled_from([1, (num_clients + 1) // 2, num_clients]))
    initial = draw(st.integers(1, pool or num_clients))
    num_stages = len(stage_sizes(initial, pool or num_clients))
    rounds = draw(st.integers(1, 5) | st.lists(st.integers(0, 4), max_size=num_stages))
    return num_clients, pool, initial, rounds


@hypothesis.given(schedules(), st.sampled_from(["round", "stage"]))
@hypothesis.settings(max_examples=30, deadline=None, derandomize=True)
def test_random_schedules_follow_the_definition(schedule, redraw):
    num_clients, pool, initial, rounds = schedule
    policy = participation.Doubling(initial, rounds, pool=pool, redraw=redraw)
    size_of_pool = pool or num_clients
    times = random_times(num_clients)
    rounds_played = jnp.arange(30, dtype=jnp.int32)
    state = policy.init(KEY, num_clients)
    cohorts = jax.vmap(
        lambda round: policy.select(KEY, state._replace(round=round), times)[0]
    )(rounds_played)
    stages = stages_by_hand(initial, size_of_pool, rounds, 30)
    assert cohorts.stage.tolist() == stages
    assert cohorts.size.tolist() == [
        min(size_of_pool, initial * 2**stage) for stage in stages
    ]
    assert cohorts.client_ids.shape == (30, size_of_pool)
    for ids in np.unique(cohorts.client_ids, axis=0):
        assert ids.tolist() == ranked(times.realised, set(ids.tolist()))
        assert set(ids.tolist()) <= set(range(num_clients))
