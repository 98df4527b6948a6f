"""Orders of a client's examples: uniform permutations that do not depend on padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY

from fedjax_srp.algorithms.local import _shuffled


@pytest.mark.parametrize("capacity", [9, 1024, 1025])
def test_an_order_is_a_permutation_of_the_examples_and_padding_comes_after(capacity):
    shuffled = jax.jit(lambda count: _shuffled(KEY, count, 4, capacity))
    for count in (1, 7, 9, capacity):
        order = np.asarray(shuffled(jnp.int32(count)))
        assert len(order) == -(-capacity // 4) * 4
        assert sorted(order[:count]) == list(range(count))
        assert sorted(order[count:capacity]) == list(range(count, capacity))


@pytest.mark.parametrize("capacities", [(9, 800), (1025, 2000)])
def test_an_order_does_not_depend_on_padding(capacities):
    orders = [
        np.asarray(_shuffled(KEY, jnp.int32(9), 4, capacity))[:9].tolist()
        for capacity in capacities
    ]
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize("capacity", [9, 1500])
def test_an_order_is_the_same_in_float64(capacity):
    expected = _shuffled(KEY, jnp.int32(7), 4, capacity)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(_shuffled(KEY, jnp.int32(7), 4, capacity), expected)


@pytest.mark.parametrize("capacity", [5, 1030])
def test_every_example_is_equally_often_in_every_place(capacity):
    draws = 6000
    keys = jax.random.split(KEY, draws)
    orders = np.asarray(
        jax.jit(jax.vmap(lambda key: _shuffled(key, jnp.int32(5), 1, capacity)[:5]))(keys)
    )
    shares = (orders[:, :, None] == np.arange(5)).mean(axis=0)
    assert np.abs(shares - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / draws)
