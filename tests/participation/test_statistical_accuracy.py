"""FLANP's policy: stages against the criterion in plain Python, nested cohorts, partial work, no recompilation."""

import math
from fractions import Fraction

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import info_of, random_times, ranked, times_of

from fedjax_srp import clocks, participation
from fedjax_srp.engine.cohort import slowest
from fedjax_srp.participation.cohorts import make_cohort, with_partial_work

KEY = jax.random.key(0)
# 2 mu c / s = 4: the thresholds of 1, 4 and 16 clients are 2, 1 and 0.5, exactly.
CONSTANTS = {"strong_convexity": 4.0, "accuracy_constant": 5.0, "samples_per_client": 10.0}


def run(policy, num_clients, norms, times=None):
    """Cohorts and metrics of rounds with these gradient norms, with one trace for all stages."""
    times = random_times(num_clients) if times is None else times
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(key, state, round, norm):
        cohort, state = policy.select(key, state, times)
        state = policy.update(state, info_of(round, cohort)._replace(global_grad_norm=norm))
        return cohort, state, policy.metrics(state)

    state, records = policy.init(KEY, num_clients), []
    for round, norm in enumerate(norms):
        key, norm = jax.random.fold_in(KEY, round), jnp.asarray(norm, dtype=float)
        cohort, state, metrics = step(key, state, jnp.int32(round), norm)
        records.append((cohort, metrics))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *records)


def by_hand(norms, sizes, threshold):
    """The stage of every round, and True where it ended; `threshold(stage, first norm)`."""
    stage, stages, completed = 0, [], []
    for norm in norms:
        stages.append(stage)
        completed.append(norm <= threshold(stage, norms[0]))
        stage = min(stage + completed[-1], len(sizes) - 1)
    return stages, completed


def test_the_stage_ends_when_the_squared_norm_is_below_the_threshold():
    norms = [9.0, 2.1, 2.0, 2.0, 1.5, 1.0, 1.0, 0.75, 0.7, math.nan, 0.51, 0.5, 7.0, 0.1]
    cohorts, metrics = run(participation.StatisticalAccuracy(1, **CONSTANTS), 16, norms)
    # 1, 2, 4, 8, 16 clients: sqrt(4 / n)
    stages, completed = by_hand(norms, [1, 2, 4, 8, 16], lambda stage, _: math.sqrt(4 / 2**stage))
    assert stages == [0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4, 4]
    assert cohorts.stage.tolist() == stages
    assert cohorts.size.tolist() == [2**stage for stage in stages]
    assert metrics["stage_completed"].tolist() == completed
    np.testing.assert_allclose(metrics["grad_norm_threshold"], [2 / math.sqrt(2**stage) for stage in stages], rtol=1e-6)


def test_the_heuristic_starts_at_a_share_of_the_first_norm_and_shrinks():
    norms = [8.0, 3.0, 2.0, 2.0, 1.0, 0.9, 0.6, 0.5, 0.5, 0.25, 0.2, 9.0]
    cohorts, metrics = run(participation.StatisticalAccuracy(3, first_threshold=0.25), 20, norms)  # 3, 6, 12, 20
    stages, completed = by_hand(norms, [3, 6, 12, 20], lambda stage, first: 0.25 * first / 2**stage)
    assert stages == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert cohorts.stage.tolist() == stages
    assert cohorts.size.tolist() == [[3, 6, 12, 20][stage] for stage in stages]
    assert metrics["stage_completed"].tolist() == completed


@hypothesis.given(
    st.lists(st.floats(0, 10, width=32), min_size=1, max_size=12),
    st.sampled_from([1, 3, 10]),
    st.sampled_from([0.5, 0.75, 1.0]),
)
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
def test_random_norms_follow_the_definition(norms, initial, shrinkage):
    sizes = [n for n in (1, 2, 4, 8, 10) if n >= initial] if initial == 1 else [initial] + [6] * (initial == 3) + [10]
    sizes = list(dict.fromkeys(sizes))
    policy, times = participation.StatisticalAccuracy(initial, shrinkage=shrinkage), random_times(10)
    state, stages = policy.init(KEY, 10), []
    for norm in norms:
        cohort, state = policy.select(KEY, state, times)
        stages.append(int(cohort.stage))
        state = policy.update(state, info_of(0, cohort)._replace(global_grad_norm=jnp.float32(norm)))
        assert int(cohort.size) == sizes[stages[-1]]
    powers = [np.float32(0.5 * norms[0]) * np.float32(shrinkage) ** np.float32(r) for r in range(len(sizes))]
    assert stages == by_hand(norms, sizes, lambda stage, _: powers[stage])[0]


def test_a_norm_that_is_not_finite_never_ends_a_stage():
    for options in ({}, CONSTANTS):
        cohorts, metrics = run(participation.StatisticalAccuracy(2, **options), 8, [math.nan, math.inf, math.nan])
        assert cohorts.size.tolist() == [2, 2, 2]
        assert not metrics["stage_completed"][[0, 2]].any()


@pytest.mark.parametrize(
    ("chosen", "by"), [({"by": "realised"}, "realised"), ({"by": "expected"}, "expected"), ({}, "expected")]
)
def test_cohorts_are_nested_and_ranked_by_the_chosen_times(chosen, by):
    times = random_times(12)
    cohorts, _ = run(participation.StatisticalAccuracy(3, **chosen, **CONSTANTS), 12, [0.0] * 4, times)
    assert cohorts.size.tolist() == [3, 6, 12, 12]
    for ids in cohorts.client_ids:  # the first n of one order
        assert ids.tolist() == ranked(getattr(times, by), range(12))


def test_thresholds_of_the_heuristic_are_leaves():
    structure = lambda **options: jax.tree.structure(participation.StatisticalAccuracy(3, **options))  # noqa: E731
    assert structure() == structure(first_threshold=0.1, shrinkage=0.9)
    for other in (CONSTANTS, {"max_work": 2}, {"on_time": 0.5}):
        assert structure() != structure(**other)


def test_starting_with_all_clients_gives_one_stage():
    cohorts, metrics = run(participation.StatisticalAccuracy(7, **CONSTANTS), 7, [0.1, 9.0, 0.1])
    assert cohorts.size.tolist() == [7, 7, 7]
    assert metrics["stage_completed"].tolist() == [True, False, True]


# Partial work.


def work_by_hand(times, max_work, finishers):
    """Units that every client has done when `finishers` have done all of theirs, in exact arithmetic."""
    end = max_work * sorted(times)[finishers - 1]
    return [max(1, min(max_work, math.floor(end / time))) for time in times]


@hypothesis.given(
    st.lists(st.integers(1, 60), min_size=7, max_size=7),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 100, 7]),
)
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
def test_partial_work_equals_exact_arithmetic(times, max_work, on_time, parts):
    """Times are whole numbers, exact in float32, or hundredths or sevenths, which it rounds."""
    policy = participation.PartialWork(max_work, on_time)
    cohort, _ = policy.select(KEY, policy.init(KEY, len(times)), times_of([time / parts for time in times]))
    finishers = max(1, math.ceil(Fraction(str(on_time)) * len(times)))
    expected = work_by_hand([Fraction(time) for time in times], max_work, finishers)
    assert cohort.client_ids.tolist() == ranked(times, range(len(times)))
    assert int(cohort.size) == len(times)
    assert cohort.work.tolist() == [expected[i] for i in cohort.client_ids]
    assert sum(units == max_work for units in expected) >= finishers


def test_a_client_on_time_does_all_work_despite_rounding():
    times = random_times(2000, seed=3)
    for k in (1, 700, 2000):
        cohort = with_partial_work(make_cohort(jnp.argsort(times.realised).astype(jnp.int32)), times, 7, k / 2000)
        assert cohort.work[:k].tolist() == [7] * k
        assert int(cohort.work.min()) >= 1
        assert np.all(np.diff(cohort.work) <= 0)


@pytest.mark.parametrize("clock", [clocks.Fixed, clocks.Dynamic, clocks.Trace])
def test_communication_counts_once_for_any_work(clock):
    """Ten units of work in time 10 + 10 are five of the slower client; the round lasts until both are done."""
    each = [1.0, 2.0]
    clock = clock(np.array([each]) if clock is clocks.Trace else clocks.Constant(each), communication=10.0)
    times, _ = clock.sample(jax.random.key(0), clock.init(jax.random.key(1), 2), jnp.zeros(()))
    np.testing.assert_array_equal(times.realised, [11.0, 12.0])
    cohort = with_partial_work(make_cohort(jnp.arange(2, dtype=jnp.int32)), times, 10, 0.5)
    assert cohort.work.tolist() == [10, 5]
    assert float(slowest(cohort, times)) == 20.0
    for work in (1, 3):
        alone = cohort._replace(work=jnp.full(2, work, jnp.int32))
        assert float(slowest(alone, times)) == 10 + 2 * work
        assert float(slowest(alone, times._replace(communication=None))) == 12 * work


def test_each_client_has_its_own_communication():
    """Client 0 does ten units in 10 + 10, client 1 in 4 + 20; if client 0 leaves at 15, it waits for client 1."""
    cohort = make_cohort(jnp.arange(2, dtype=jnp.int32))
    times = times_of([11.0, 6.0])._replace(communication=jnp.array([10.0, 4.0]))
    assert with_partial_work(cohort, times, 10, 0.5).work.tolist() == [10, 8]
    leaving = times._replace(available=jnp.ones(2, bool), stays=jnp.array([15.0, 100.0]))
    cohort = with_partial_work(cohort, leaving, 10, 0.5)
    assert (int(cohort.size), int(cohort.client_ids[0]), int(cohort.work[0])) == (1, 1, 10)


def test_a_share_of_clients_is_rounded_up():
    shares = {(0.1, 1): 1, (0.1, 10): 1, (0.1, 11): 2, (0.1, 20): 2, (0.1, 100): 10, (0.0, 5): 1, (1.0, 5): 5}
    by_rounding_alone = {(0.07, 100): 7, (0.14, 50): 7, (0.28, 25): 7}
    assert all(share * size > 7 for share, size in by_rounding_alone)
    for (share, size), number in (shares | by_rounding_alone).items():
        cohort = make_cohort(jnp.arange(size, dtype=jnp.int32))
        work = with_partial_work(cohort, times_of(np.arange(1.0, size + 1)), 2, share).work
        assert work.tolist() == [2] * number + [1] * (size - number)


def test_stages_may_have_partial_work_of_their_own_cohort():
    times = times_of([1.0, 2.0, 4.0, 8.0])
    policy = participation.StatisticalAccuracy(2, **CONSTANTS, max_work=4, on_time=0.5)
    cohorts, _ = run(policy, 4, [0.0, 0.0], times)
    assert cohorts.size.tolist() == [2, 4]
    assert cohorts.work[0, :2].tolist() == [4, 2]  # one of two is on time
    assert cohorts.work[1].tolist() == [4, 4, 2, 1]


def test_clients_outside_the_cohort_do_not_count_as_on_time():
    """Clients 2 and 3 are faster, but do not take part."""
    cohort = make_cohort(jnp.arange(4, dtype=jnp.int32), size=jnp.int32(2))
    assert with_partial_work(cohort, times_of([4.0, 8.0, 1.0, 1.0]), 4, 0.5).work[:2].tolist() == [4, 2]


def test_on_time_1_is_full_with_max_work():
    times = random_times(9)
    full = participation.Full().select(KEY, (), times)[0]
    everything = participation.PartialWork(5, 1.0).select(KEY, (), times)[0]
    chex.assert_trees_all_equal(everything, full._replace(work=5 * full.work))
