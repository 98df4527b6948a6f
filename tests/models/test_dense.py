"""The product of dense layers: values, derivatives, and where its gradient is a sum of outer products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.backend import traced_for
from fedjax_srp.models import dense

SHAPE = (300, 500)  # above 1 MiB in double precision


def arrays(batch, shape=SHAPE, dtype=jnp.float64):
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (batch, shape[0]), shape, shape
    return [jax.random.normal(key, size, dtype) for key, size in zip(keys, sizes, strict=True)]


def squared(product):
    return lambda kernel, x: (product(x, kernel) ** 2).sum()


def products_in(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count("dot_general")


@pytest.mark.parametrize("batch", [1, 10, 11])
def test_derivatives_are_those_of_the_product_of_matrices(batch):
    with jax.enable_x64(True):
        x, kernel, direction = arrays(batch)
        ours, plain = squared(dense.product), squared(jnp.matmul)
        np.testing.assert_array_equal(dense.product(x, kernel), x @ kernel)

        def derivatives(function):
            gradients = jax.grad(function, (0, 1))(kernel, x)
            twice = jax.jvp(lambda kernel: jax.grad(function)(kernel, x), (kernel,), (direction,))[1]
            return *gradients, twice, jax.jvp(function, (kernel, x), (direction, x))[1]

        for found, expected in zip(derivatives(ours), derivatives(plain), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize(
    ("batch", "shape", "platform", "products"),
    [(10, SHAPE, "cpu", 1), (11, SHAPE, "cpu", 2), (10, (300, 400), "cpu", 2), (10, SHAPE, "gpu", 2)],
)
def test_the_gradient_is_no_product_where_that_is_faster(batch, shape, platform, products):
    """Forwards it is one; the gradient of the input is not asked for."""
    with jax.enable_x64(True), traced_for(platform):
        x, kernel, _ = arrays(batch, shape)
        assert products_in(jax.grad(squared(dense.product)), kernel, x) == products


def test_models_train_alike_both_ways(monkeypatch):
    """Two rounds of FedAvg, one client at a time, and with a second seed beside it."""
    data = srp.data.load("digits", num_clients=4, classes_per_client=5)
    model = srp.models.mlp((8, 8), 10, hidden=(128, 32))
    monkeypatch.setattr(dense, "LEAST_BYTES", 64 * 128 * 4)
    keys = jax.random.split(jax.random.key(0), 2)

    def trained(most):
        monkeypatch.setattr(dense, "MOST_EXAMPLES", most)
        algorithm = srp.algorithms.fedavg(model, srp.algorithms.sgd(0.1))
        histories = srp.simulate_seeds(algorithm, data, num_rounds=2, keys=keys, progress=False)
        one = srp.simulate(algorithm, data, num_rounds=2, key=keys[0], progress=False)
        return [jax.device_get(history.server_state.params) for history in (*histories, one)]

    for ours, plain in zip(trained(10), trained(0), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), ours, plain)
        assert any((a != b).any() for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True))
