"""The CNN of three blocks against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_network import numpy_network

from fedjax_srp.models import CNN

KEY = jax.random.key(5)
SMALL = {"channels": (2, 8, 9, 3, 8, 2), "hidden": (6, 5)}


def numpy_cnn(params, x):
    """Apply the network: zero padding, and pooling after every second convolution."""
    return numpy_network(params, x, [False, True] * 3, padding=1)


@pytest.mark.short("shape1-patches")
@pytest.mark.parametrize(
    ("shape", "strategy"),
    [
        ((8, 8, 1), "winograd"),
        ((13, 10, 3), "patches"),
        ((9, 16), "auto"),
        ((8, 11, 2), "xla"),
    ],
)
def test_logits_agree_with_numpy(shape, strategy):
    with jax.enable_x64(True):
        model = CNN(shape, 4, convolution=strategy, dtype=jnp.float64, **SMALL)
        params = jax.tree.map(
            lambda p: p + 0.05, jax.jit(model.init)(KEY)
        )  # biases that are not 0
        x = jax.random.normal(KEY, (3, *shape), jnp.float64)
        np.testing.assert_allclose(
            jax.jit(model.logits)(params, x), numpy_cnn(params, x), rtol=1e-10, atol=1e-10
        )
