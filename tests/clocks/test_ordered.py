"""Clients numbered by speed, and classes reserved for the slowest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_srp import clocks
from fedjax_srp.data import load

NUM_CLIENTS = 30


def times_of(clock, seed=0):
    key_init, key_round = jax.random.split(jax.random.key(seed))
    return clock.sample(key_round, clock.init(key_init, NUM_CLIENTS), jnp.zeros(()))[0]


@pytest.mark.parametrize("make", [clocks.Fixed, clocks.Dynamic])
@pytest.mark.parametrize(
    "distribution",
    [
        clocks.Exponential(clocks.Uniform(1 / NUM_CLIENTS, 1)),
        clocks.Uniform(clocks.Exponential(), clocks.Constant(50.0)),
        clocks.Constant(clocks.Exponential()),
    ],
    ids=["exponential", "uniform", "constant"],
)
def test_ordered_times_are_the_sorted_times(make, distribution):
    plain = times_of(make(distribution)).expected
    ordered = times_of(make(distribution, ordered=True)).expected
    assert (np.diff(plain) < 0).any()
    np.testing.assert_array_equal(ordered, np.sort(plain))


def test_realised_times_belong_to_their_client():
    clock = clocks.Dynamic(clocks.Exponential(clocks.Uniform(0.1, 1)), ordered=True)
    state = clock.init(jax.random.key(0), 5)
    keys = jax.random.split(jax.random.key(1), 20_000)
    times = jax.vmap(lambda key: clock.sample(key, state, jnp.zeros(()))[0])(keys)
    realised, expected = np.asarray(times.realised), np.asarray(times.expected)[0]
    errors = realised.std(0, ddof=1) / np.sqrt(len(realised))
    assert np.max(np.abs(realised.mean(0) - expected) / errors) < 5


def test_reserved_classes_are_those_of_the_slowest():
    data = load("digits", NUM_CLIENTS, classes_per_client=3, reserved_classes=2)
    clock = clocks.Fixed(clocks.Exponential(), ordered=True)
    slowest = np.argsort(times_of(clock).expected)[-NUM_CLIENTS // 5 :]
    labels = [data.train_client(jnp.int32(i)).y.tolist() for i in range(NUM_CLIENTS)]
    assert [i for i, y in enumerate(labels) if {8, 9} & {*y}] == sorted(slowest)
