"""FLANP's policy: stages against the criterion in plain Python, and partial work."""

import functools
import math
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from policy_helpers import info_of, random_times, ranked, times_of

from fedjax_srp import participation
from fedjax_srp.participation.cohorts import make_cohort, with_partial_work

KEY = jax.random.key(0)
# 2 mu c / s = 4: the thresholds of 1, 4 and 16 clients are 2, 1 and 0.5, exactly.
CONSTANTS = {
    "strong_convexity": 4.0,
    "accuracy_constant": 5.0,
    "samples_per_client": 10.0,
}


def run(policy, num_clients, norms, times=None):
    """Cohorts and metrics of rounds with these gradient norms."""
    times = random_times(num_clients) if times is None else times

    @jax.jit
    def step(key, state, round, norm):
        cohort, state = policy.select(key, state, times)
        state = policy.update(
            state, info_of(round, cohort)._replace(global_grad_norm=norm)
        )
        return cohort, state, policy.metrics(state)

    state, records = policy.init(KEY, num_clients), []
    for round, norm in enumerate(norms):
        key, norm = jax.random.fold_in(KEY, round), jnp.asarray(norm, dtype=float)
        cohort, state, metrics = step(key, state, jnp.int32(round), norm)
        records.append((cohort, metrics))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *records)


def by_hand(norms, threshold):
    """The stage of every round, five in all, and True where it ended."""
    stage, stages, completed = 0, [], []
    for norm in norms:
        stages.append(stage)
        completed.append(norm <= threshold(stage))
        stage = min(stage + completed[-1], 4)
    return stages, completed


def test_the_stage_ends_when_the_squared_norm_is_below_the_threshold():
    norms = [9.0, 2.1, 2.0, 2.0, 1.5, 1.0, 1.0, 0.75, 0.7, math.nan, 0.51, 0.5, 7.0, 0.1]
    cohorts, metrics = run(participation.StatisticalAccuracy(1, **CONSTANTS), 16, norms)
    # 1, 2, 4, 8, 16 clients: sqrt(4 / n)
    stages, completed = by_hand(norms, lambda stage: math.sqrt(4 / 2**stage))
    assert stages == [0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4, 4]
    assert cohorts.stage.tolist() == stages
    assert cohorts.size.tolist() == [2**stage for stage in stages]
    assert metrics["stage_completed"].tolist() == completed
    np.testing.assert_allclose(
        metrics["grad_norm_threshold"],
        [2 / math.sqrt(2**stage) for stage in stages],
        rtol=1e-6,
    )


def test_a_norm_that_is_not_finite_never_ends_a_stage():
    for options in ({}, CONSTANTS):
        cohorts, metrics = run(
            participation.StatisticalAccuracy(2, **options),
            8,
            [math.nan, math.inf, math.nan],
        )
        assert cohorts.size.tolist() == [2, 2, 2]
        assert not metrics["stage_completed"][[0, 2]].any()


# Partial work.


def work_by_hand(times, max_work, finishers):
    """Units that every client has done when `finishers` have done all of theirs, in exact arithmetic."""
    end = max_work * sorted(times)[finishers - 1]
    return [max(1, min(max_work, math.floor(end / time))) for time in times]


@functools.cache
def chosen(max_work, on_time):
    """Return the compiled choice among seven clients."""
    policy = participation.PartialWork(max_work, on_time)
    return jax.jit(lambda times: policy.select(KEY, policy.init(KEY, 7), times)[0])


@hypothesis.given(
    st.lists(st.integers(1, 60), min_size=7, max_size=7),
    st.sampled_from([1, 4, 12]),
    st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 100, 7]),
)
@hypothesis.example(
    [3] + [4] * 6, 4, 0.0, 7
)  # three units take as long as four of the fastest, or longer in float32
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
def test_partial_work_equals_exact_arithmetic(times, max_work, on_time, parts):
    """Times are whole numbers, exact in float32, or hundredths or sevenths, which it rounds."""
    cohort = chosen(max_work, on_time)(times_of([time / parts for time in times]))
    finishers = max(1, math.ceil(Fraction(str(on_time)) * len(times)))
    expected = work_by_hand([Fraction(time) for time in times], max_work, finishers)
    assert cohort.client_ids.tolist() == ranked(times, range(len(times)))
    assert int(cohort.size) == len(times)
    assert cohort.work.tolist() == [expected[i] for i in cohort.client_ids]
    assert sum(units == max_work for units in expected) >= finishers


def test_each_client_has_its_own_communication():
    """Client 0 does ten units in 10 + 10, client 1 in 4 + 20; if client 0 leaves at 15, it waits for client 1."""
    cohort = make_cohort(jnp.arange(2, dtype=jnp.int32))
    times = times_of([11.0, 6.0])._replace(communication=jnp.array([10.0, 4.0]))
    assert with_partial_work(cohort, times, 10, 0.5).work.tolist() == [10, 8]
    leaving = times._replace(available=jnp.ones(2, bool), stays=jnp.array([15.0, 100.0]))
    cohort = with_partial_work(cohort, leaving, 10, 0.5)
    assert (int(cohort.size), int(cohort.client_ids[0]), int(cohort.work[0])) == (
        1,
        1,
        10,
    )


def test_a_share_of_clients_is_rounded_up():
    assert 0.28 * 25 > 7  # by rounding alone
    for share, size, number in (
        (0.1, 1, 1),
        (0.1, 10, 1),
        (0.1, 11, 2),
        (0.0, 5, 1),
        (1.0, 5, 5),
        (0.28, 25, 7),
    ):
        cohort = make_cohort(jnp.arange(size, dtype=jnp.int32))
        work = jax.jit(with_partial_work, static_argnums=(2, 3))(
            cohort, times_of(np.arange(1.0, size + 1)), 2, share
        ).work
        assert work.tolist() == [2] * number + [1] * (size - number)
