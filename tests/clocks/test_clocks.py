"""Clocks: fixed, dynamic and recorded times, their expectations, and bad arguments."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_srp import clocks


def run(clock, num_clients, num_rounds, seed=0):
    """Expected and realised times of a run, (rounds, clients) each, from one scan."""
    state = clock.init(jax.random.key(seed), num_clients)

    def step(state, key):
        times, state = clock.sample(key, state, jnp.zeros(()))
        return state, times

    _, times = jax.lax.scan(
        step, state, jax.random.split(jax.random.key(seed + 1), num_rounds)
    )
    return np.asarray(times.expected), np.asarray(times.realised)


ALL = [
    clocks.Fixed(clocks.Constant(1)),
    clocks.Dynamic(clocks.Exponential(clocks.Uniform(0.2, 1))),
    clocks.Trace(np.arange(15.0).reshape(3, 5)),
]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("clock", ALL, ids=lambda clock: clock.name)
def test_protocol(clock, x64):
    assert clock.name == type(clock).__name__.lower()
    with jax.enable_x64(x64):
        state = clock.init(jax.random.key(0), 5)
        chex.clear_trace_counter()
        sample = jax.jit(chex.assert_max_traces(clock.sample, 1))
        for seed in range(3):
            times, following = sample(jax.random.key(seed), state, jnp.zeros(()))
            chex.assert_shape((times.expected, times.realised), (5,))
            assert times.expected.dtype == times.realised.dtype == jnp.zeros(()).dtype
            chex.assert_trees_all_equal_shapes_and_dtypes(state, following)
            state = following


def test_fixed_times_are_drawn_once_and_known():
    clock = clocks.Fixed(clocks.Exponential(1.0))
    expected, realised = run(clock, 50, 7)
    np.testing.assert_array_equal(realised, np.tile(realised[0], (7, 1)))
    np.testing.assert_array_equal(expected, realised)
    assert len(np.unique(realised[0])) == 50
    assert not np.array_equal(run(clock, 50, 1, seed=9)[1][0], realised[0])
    _, given = run(clocks.Fixed(clocks.Constant([3.0, 1.0, 2.0])), 3, 2)
    np.testing.assert_array_equal(given, [[3.0, 1.0, 2.0]] * 2)


def test_random_clock_of_the_paper():
    """lambda_i ~ U[1/N, 1], drawn once; P(T_i > 1 / lambda_i) = 1 / e, independently between rounds."""
    num_clients, rounds = 100, 4000
    rate = clocks.Uniform(1 / num_clients, 1)
    clock = clocks.Dynamic(clocks.Exponential(rate))
    expected, realised = run(clock, num_clients, rounds)
    rates = 1 / expected[0]
    assert rates.min() >= 1 / num_clients * (1 - 1e-6)
    assert rates.max() <= 1 + 1e-6
    mean, std = (1 + 1 / num_clients) / 2, (1 - 1 / num_clients) / np.sqrt(12)
    assert abs(rates.mean() - mean) < 5 * std / np.sqrt(num_clients)
    share, p = (realised > expected).mean(0), np.exp(-1)
    assert np.max(np.abs(share - p)) < 5 * np.sqrt(p * (1 - p) / rounds)
    following = np.corrcoef(realised[:-1, 0], realised[1:, 0])[0, 1]
    assert abs(following) < 5 / np.sqrt(rounds)


def test_trace_cycles_over_rounds():
    table = np.array([[1.0, 5.0], [2.0, 6.0], [6.0, 1.0]])
    expected, realised = run(clocks.Trace(table), 2, 8)
    np.testing.assert_array_equal(realised, table[np.arange(8) % 3])
    np.testing.assert_allclose(expected, np.tile([3.0, 4.0], (8, 1)), rtol=1e-6)
    np.testing.assert_array_equal(run(clocks.Trace([3, 1]), 2, 2)[1], [[3.0, 1.0]] * 2)


@pytest.mark.parametrize("work", [0, 5, 2.5])
@pytest.mark.parametrize(
    "make",
    [
        functools.partial(clocks.Fixed, clocks.Exponential()),
        functools.partial(clocks.Dynamic, clocks.Exponential()),
        functools.partial(clocks.Trace, [[1.0, 2.0], [3.0, 4.0]]),
    ],
)
def test_work_multiplies_times_and_communication_is_added_once(make, work):
    expected_once, realised_once = run(make(), 2, 3)
    expected, realised = run(make(work=work, communication=3.0), 2, 3)
    np.testing.assert_allclose(expected, work * expected_once + 3, rtol=1e-6)
    np.testing.assert_allclose(realised, work * realised_once + 3, rtol=1e-6)
