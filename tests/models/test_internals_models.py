"""Of models: strategies of convolutions and pooling against NumPy, and blocks of examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_network import numpy_convolution
from reference.small import KEY
from test_lenet import numpy_lenet, small

import fedjax_srp as srp
from fedjax_srp import Examples, RoundContext
from fedjax_srp.models import convolution
from fedjax_srp.models.convolution import convolve, max_pool, resolve
from fedjax_srp.models.lenet import BLOCK
from fedjax_srp.xla.backend import traced_for

STRATEGIES = ("patches", "tiles", "winograd", "xla")
SHAPES = [  # images, kernel
    ((2, 14, 14, 3), (5, 5, 3, 4)),
    ((3, 9, 10, 2), (5, 4, 2, 3)),  # an odd and an odd number of outputs
    ((1, 6, 7, 1), (3, 2, 1, 2)),
    ((2, 5, 5, 2), (5, 1, 2, 1)),  # one output row
]


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("image", "kernel"), SHAPES)
def test_output_and_gradients_agree_with_numpy_in_float64(image, kernel, strategy):
    """The gradients are those of a bilinear function: its adjoints, tried in random directions."""
    x, w = draw(image, kernel)
    expected = numpy_convolution(x, w)
    cotangent, dx, dw = draw(expected.shape, image, kernel, seed=1)
    with jax.enable_x64(True):
        out, pull = jax.vjp(
            jax.jit(lambda x, w: convolve(x, w, strategy)), jnp.asarray(x), jnp.asarray(w)
        )
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)
        of_x, of_w = pull(jnp.asarray(cotangent))
        moved_x = np.sum(cotangent * numpy_convolution(dx, w))
        np.testing.assert_allclose(np.sum(of_x * dx), moved_x, rtol=0, atol=1e-10)
        moved_w = np.sum(cotangent * numpy_convolution(x, dw))
        np.testing.assert_allclose(np.sum(of_w * dw), moved_w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(
    ("strategy", "tolerance"),
    [("patches", 1e-6), ("tiles", 1e-6), ("winograd", 2e-5), ("xla", 1e-6)],
)
def test_single_precision_loses_little(strategy, tolerance, size):
    """Largest error over largest entry at the size of the paper's conv2; Winograd's matrices lose a decimal digit."""
    x, w = draw((2, 14, 14, 64), (size, size, 64, 8))
    x = np.maximum(x, 0)
    out = convolve(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), strategy)
    expected = numpy_convolution(x, w)
    assert np.abs(out - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("strategy", ["patches", "tiles", "winograd"])
def test_the_gradient_has_no_scatter(strategy):
    x, w = (jnp.float32(a) for a in draw((2, 12, 12, 8), (5, 5, 8, 4)))
    text = (
        jax.jit(jax.grad(lambda x, w: jnp.sum(convolve(x, w, strategy)), (0, 1)))
        .lower(x, w)
        .as_text()
    )
    assert "dot_general" in text
    for slow in ("scatter", "gather", "convolution"):
        assert f"stablehlo.{slow}" not in text


def test_auto_is_the_measured_choice_on_cpus_and_gpus_and_xla_elsewhere(monkeypatch):
    assert resolve("auto", (5, 5, 3, 64)) == "patches"  # too few channels for Winograd
    assert resolve("auto", (5, 5, 64, 64)) == "winograd"
    assert resolve("auto", (1, 1, 64, 64)) == "patches"  # a product of matrices already
    assert resolve("auto", (5, 5, 6, 16)) == "tiles"  # few inputs and outputs of a pixel
    assert resolve("auto", (3, 3, 16, 16)) == "winograd"
    assert resolve("auto", (5, 1, 1, 16)) == "patches"  # a series
    for out_shape, expected in (
        ((10, 4, 4), "patches"),  # too few outputs for the transforms of a kernel
        ((20, 4, 4), "winograd"),
        ((200, 2, 2), "patches"),  # a quarter of each tile
    ):
        assert resolve("auto", (3, 3, 256, 256), out_shape) == expected
    for backend, expected in {"gpu": "patches", "tpu": "xla"}.items():
        monkeypatch.setattr(
            convolution.jax, "default_backend", lambda backend=backend: backend
        )
        assert resolve("auto", (5, 5, 64, 64)) == expected


def test_max_pool_and_its_gradient():
    (x,) = draw((2, 5, 6, 3))
    blocks = x[:, :4].reshape(2, 2, 2, 3, 2, 3)
    pooled, pull = jax.vjp(max_pool, jnp.float32(x))
    np.testing.assert_array_equal(pooled, blocks.max((2, 4)).astype(np.float32))
    (gradient,) = pull(jnp.ones_like(pooled))
    largest = blocks == blocks.max((2, 4), keepdims=True)
    np.testing.assert_array_equal(gradient[:, :4], largest.reshape(2, 4, 6, 3))
    assert not gradient[:, 4].any()


def test_equal_entries_share_a_pooled_gradient():
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x)))(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient, np.full((1, 2, 2, 1), 0.25))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_many_examples_are_evaluated_in_blocks(platform):
    model, count = small(), 3 * BLOCK - 1
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (count, 16, 16, 3))
    both = lambda params, x: (
        model.logits(params, x),
        model.stem(params.representation, x),
    )
    with traced_for(platform):
        traced = jax.jit(both).trace(params, x)
    together, stem = traced.lower().compile()(params, x)
    np.testing.assert_allclose(together, numpy_lenet(params, x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        jax.jit(model.classify)(params.head, stem), together, rtol=1e-4, atol=1e-6
    )
    # Windows of conv1 for all examples do not fit a GPU if a whole chunk of clients has them.
    assert f"[{count},12,12," not in str(traced.jaxpr)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_gradients_through_blocks(platform):
    """A criterion on the gradient over all examples of a client differentiates in evaluation mode."""
    model = small(convolution="patches")
    params, x = (
        jax.jit(model.init)(KEY),
        jax.random.normal(KEY, (2 * BLOCK + 1, 16, 16, 3)),
    )
    gradient = lambda key: jax.grad(
        lambda p: jnp.mean(jnp.square(model.logits(p, x, key)))
    )(params)
    with traced_for(platform):
        traced = jax.jit(lambda: gradient(None)).trace()
    in_blocks, at_once = traced.lower().compile()(), jax.jit(gradient)(KEY)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        in_blocks,
        at_once,
    )
    if (
        platform == "gpu"
    ):  # windows of all three blocks, kept for the gradient, do not fit for a whole chunk of clients
        assert "[3,864,75]" not in str(traced.jaxpr)


def test_fedsgd_takes_a_few_images_at_a_time():
    """Its gradients in training mode, of a whole chunk of clients, would not fit a GPU with all images at once."""
    model, count = small(), 5 * BLOCK - 1
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (count, 16, 16, 3))
    examples = Examples(x, jnp.arange(count) % model.num_classes, jnp.int32(count))
    context = RoundContext(*[jnp.int32(1)] * 3, 1, jnp.int32(1))
    client = srp.algorithms.FedSGD(model).client
    traced = jax.jit(client).trace(KEY, params, (), examples, context)
    assert f"[{count},12,12," not in str(traced.jaxpr)


def test_the_stem_of_many_clients_under_one_representation():
    model = small()
    params, x = (
        jax.jit(model.init)(KEY),
        jax.random.normal(KEY, (3, BLOCK + 2, 16, 16, 3)),
    )
    own = jax.tree.map(lambda p: jnp.stack([p, -p, 2 * p]), params.representation)
    shared = jax.jit(jax.vmap(model.stem, (None, 0)))(params.representation, x)
    personal = jax.jit(jax.vmap(model.stem))(own, x)
    alone = jax.jit(model.represent)
    for client in range(3):
        mine = jax.tree.map(lambda leaf, c=client: leaf[c], own)
        np.testing.assert_allclose(
            shared[client], alone(params.representation, x[client]), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            personal[client], alone(mine, x[client]), rtol=1e-4, atol=1e-6
        )
