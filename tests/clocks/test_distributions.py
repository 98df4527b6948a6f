"""Distributions: moments and order statistics against closed forms, parameters per client, bad arguments."""

import jax
import numpy as np
import pytest

from fedjax_srp import clocks


def sample_rounds(distribution, num_clients, num_rounds, seed=0):
    """Times (rounds, clients) with parameters drawn once, and the parameters."""
    parameters = distribution.parameters(jax.random.key(seed), num_clients)
    keys = jax.random.split(jax.random.key(seed + 1), num_rounds)
    return np.asarray(
        jax.vmap(lambda key: distribution.sample(key, parameters))(keys)
    ), parameters


def standard_errors(samples, expected):
    """Distance of the means over axis 0 from their expectation, in standard errors."""
    return np.abs(samples.mean(0) - expected) / (
        samples.std(0, ddof=1) / np.sqrt(len(samples))
    )


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_order_statistics_of_exponential_are_harmonic(rate):
    """E[T_(i)] = (H_N - H_(N-i)) / lambda; clients are independent."""
    num_clients = 16
    times, _ = sample_rounds(clocks.Exponential(rate), num_clients, 20_000)
    expected = np.cumsum(1 / np.arange(num_clients, 0, -1)) / rate
    assert standard_errors(np.sort(times, axis=1), expected).max() < 5
    correlation = np.corrcoef(times.T) - np.eye(num_clients)
    assert np.abs(correlation).max() < 5 / np.sqrt(20_000)


@pytest.mark.parametrize(
    ("distribution", "variance"),
    [
        (clocks.Exponential([0.5, 1.0, 4.0]), [4.0, 1.0, 1 / 16]),
        (clocks.Uniform(50, [100.0, 200.0, 500.0]), np.square([50, 150, 450]) / 12),
        (
            clocks.LogNormal([1.0, 2.0, 4.0], 0.5),
            np.array([1, 4, 16]) * np.exp(0.25) * np.expm1(0.25),
        ),
        (clocks.Empirical([1.0, 2.0, 6.0]), [14 / 3] * 3),
    ],
)
def test_mean_and_variance_per_client(distribution, variance):
    times, parameters = sample_rounds(distribution, 3, 20_000)
    mean = np.asarray(distribution.mean(parameters))
    assert standard_errors(times, mean).max() < 5
    assert standard_errors((times - mean) ** 2, variance).max() < 5


@pytest.mark.parametrize("make", [clocks.Uniform, clocks.LogNormal])
def test_nested_parameters_are_drawn_independently(make):
    one, other = make(clocks.Uniform(0.5, 1), clocks.Uniform(1, 2)).parameters(
        jax.random.key(0), 1000
    )
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(1000)


def test_parameters_and_samples_do_not_share_randomness():
    times, rates = sample_rounds(clocks.Exponential(clocks.Uniform(0.5, 1)), 2000, 1)
    unit = times[0] * np.asarray(rates)  # Exp(1), whatever the rate
    assert abs(np.corrcoef(unit, rates)[0, 1]) < 5 / np.sqrt(2000)
    clock = clocks.Fixed(clocks.Exponential(clocks.Uniform(0.5, 1)))
    fixed = np.asarray(clock.init(jax.random.key(0), 20_000).times)
    assert standard_errors(fixed, 2 * np.log(2)) < 5  # the mean of 1 / rate
