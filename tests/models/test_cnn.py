"""The CNN of three blocks against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_convolution import numpy_network

from fedjax_srp.models import CNN

KEY = jax.random.key(5)
SMALL = {"channels": (2, 8, 9, 3, 8, 2), "hidden": (6, 5)}


def numpy_cnn(params, x):
    """Apply the network: zero padding, and pooling after every second convolution."""
    return numpy_network(params, x, [False, True] * 3, padding=1)


@pytest.mark.short("shape1-patches")
@pytest.mark.parametrize(
    ("shape", "strategy"), [((8, 8, 1), "winograd"), ((13, 10, 3), "patches"), ((9, 16), "auto"), ((8, 11, 2), "xla")]
)
def test_logits_and_gradients(shape, strategy):
    """Logits agree with NumPy in float64, gradients with central differences along a direction."""
    with jax.enable_x64(True):
        model = CNN(shape, 4, convolution=strategy, dtype=jnp.float64, **SMALL)
        params = jax.tree.map(lambda p: p + 0.05, jax.jit(model.init)(KEY))  # biases that are not 0
        x = jax.random.normal(KEY, (3, *shape), jnp.float64)
        np.testing.assert_allclose(jax.jit(model.logits)(params, x), numpy_cnn(params, x), rtol=1e-10, atol=1e-10)
        rng = np.random.default_rng(0)
        way = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)
        weights = rng.normal(size=(3, 4))
        gradient = jax.jit(jax.grad(lambda p: jnp.sum(weights * model.logits(p, x))))(params)
        along = sum(jnp.sum(g * w) for g, w in zip(*map(jax.tree.leaves, (gradient, way)), strict=True))
        step = 1e-6
        ahead, behind = (
            np.sum(weights * numpy_cnn(jax.tree.map(lambda p, w, s=s: p + s * w, params, way), x))
            for s in (step, -step)
        )
        np.testing.assert_allclose(along, (ahead - behind) / (2 * step), rtol=1e-5)
