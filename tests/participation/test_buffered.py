"""Buffered: server steps against a queue of jobs, long runs in float32, concurrency."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import info_of
from reference.fedbuff import jobs

import fedjax_srp as srp
from fedjax_srp import ClientTimes, participation

KEY = jax.random.key(0)


def run(policy, table):
    """The cohorts of one round per row of the table of times, from one program."""
    table = jnp.asarray(table, dtype=float)

    def step(state, row):
        cohort, state = policy.select(KEY, state, ClientTimes(table[0], row))
        return policy.update(state, info_of(0, cohort)), cohort

    cohorts = jax.jit(lambda state, table: jax.lax.scan(step, state, table)[1])(
        policy.init(KEY, table.shape[1]), table
    )
    return jax.device_get(cohorts)


def server_steps(table, k, number):
    """Yield (time of the server step, clients in the order of arrival) from the queue."""
    arrived = jobs(
        table.shape[1], lambda version, i: float(table[version % len(table), i]), k
    )
    for _ in range(number):
        step = list(itertools.islice(arrived, k))
        yield step[-1].end, [job.client for job in step]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 3, 8, 9])
def test_server_steps_equal_a_queue_of_jobs(k, ties):
    """Times differ in every round. With ties they are whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(k)
    table = (
        rng.integers(0, 4, (40, 9)).astype(float)
        if ties
        else rng.exponential(size=(40, 9))
    )
    with jax.enable_x64(True):
        cohorts = run(participation.Buffered(k), table)
    for t, (time, arrivals) in enumerate(server_steps(table, k, 40)):
        assert cohorts.client_ids[t].tolist() == arrivals
        assert float(np.sum(cohorts.duration[: t + 1])) == pytest.approx(time, rel=1e-12)


def test_jobs_keep_their_length_after_many_server_steps_in_float32():
    """The run ends at times above 100,000, where float32 has a resolution of a hundredth."""
    times = np.random.default_rng(2).uniform(10.0, 30.0, 10).astype(np.float32)
    cohorts = run(participation.Buffered(1), np.tile(times, (100_000, 1)))
    ends = np.cumsum(cohorts.duration, dtype=np.float64)
    assert ends[-1] > 1e5
    for i, time in enumerate(times):
        lasted = np.diff(ends[cohorts.client_ids[:, 0] == i], prepend=0.0)
        np.testing.assert_allclose(lasted, time, rtol=2e-6)


def test_concurrency_keeps_m_clients_busy_and_draws_them_about_equally():
    """Clients of unequal speed begin about equally often."""
    times = np.tile(np.linspace(0.5, 5.0, 20), (6000, 1))
    keys = jax.random.split(KEY, len(times))
    policy = participation.Buffered(2, concurrency=4)

    def step(state, row):
        key, realised = row
        cohort, state = policy.select(key, state, ClientTimes(realised, realised))
        return state, (cohort, jnp.sum(state.busy))

    _, (cohorts, busy) = jax.lax.scan(
        step, policy.init(KEY, 20), (keys, jnp.asarray(times, dtype=float))
    )
    assert set(np.asarray(busy).tolist()) == {3}  # the fourth begins at the server step
    drawn = np.bincount(np.asarray(cohorts.next_ids).ravel(), minlength=20)
    jobs = drawn.sum()
    # Slow clients are busy longer and drawn less: a cycle is a job and an idle time, so 1 / (T_i + mean idle time).
    idle = np.asarray(cohorts.duration).sum() * (20 - 4) / jobs
    law = 1 / (times[0] + idle)
    np.testing.assert_allclose(
        drawn / jobs, law / law.sum(), atol=5 * np.sqrt(0.05 / jobs)
    )


@pytest.mark.long
def test_throughput_follows_renewal_theory():
    """M jobs end per mean job time; a round with M clients lasts as long as the longest, H_M means under Exp(1)."""
    num_clients, concurrency, rounds = 1000, 20, 4000
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))

    def updates_per_time(policy, key):
        key_init, *keys = jax.random.split(key, rounds + 1)
        clock_state = clock.init(key, num_clients)

        def step(state, key):
            key_clock, key_policy = jax.random.split(key)
            times, _ = clock.sample(key_clock, clock_state, jnp.zeros(()))
            cohort, state = policy.select(key_policy, state, times)
            duration = (
                times.realised[cohort.client_ids].max()
                if cohort.duration is None
                else cohort.duration
            )
            return state, (cohort.size, duration)

        sizes, durations = jax.lax.scan(
            step, policy.init(key_init, num_clients), jnp.stack(keys)
        )[1]
        return int(sizes.sum()) / float(durations.sum())

    asynchronous = updates_per_time(
        participation.Buffered(10, concurrency=concurrency), KEY
    )
    synchronous = updates_per_time(participation.Uniform(concurrency), KEY)
    harmonic = np.sum(1 / np.arange(1, concurrency + 1))  # 3.6
    assert asynchronous == pytest.approx(concurrency, rel=5 / np.sqrt(10 * rounds))
    assert asynchronous / synchronous == pytest.approx(
        harmonic, rel=5 * 0.36 / np.sqrt(rounds)
    )
