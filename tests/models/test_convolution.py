"""Convolutions and pooling against NumPy in float64, and the strategies against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_srp.models import convolution
from fedjax_srp.models.convolution import convolve, max_pool, resolve

STRATEGIES = ("patches", "winograd", "xla")
SHAPES = [  # images, kernel
    ((2, 14, 14, 3), (5, 5, 3, 4)),
    ((3, 9, 10, 2), (5, 4, 2, 3)),  # an odd and an odd number of outputs
    ((1, 6, 7, 1), (3, 2, 1, 2)),
    ((2, 5, 5, 2), (5, 1, 2, 1)),  # one output row
]


def numpy_convolution(x, kernel):
    height, width = x.shape[1] - kernel.shape[0] + 1, x.shape[2] - kernel.shape[1] + 1
    out = np.zeros((x.shape[0], height, width, kernel.shape[3]))
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            out += x[:, i : i + height, j : j + width] @ kernel[i, j]
    return out


def numpy_network(params, x, pooled, padding):
    """Apply zero-padded convolutions conv1, conv2, ..., then fc1, fc2 and out, in float64.

    `pooled` is True for each convolution that is followed by 2 x 2 max pooling.
    """
    params = jax.tree.map(
        lambda a: np.asarray(a, np.float64), params.representation | params.head
    )
    x = np.asarray(x, np.float64)
    x = x[..., None] if x.ndim == 3 else x
    for i, is_pooled in enumerate(pooled, 1):
        layer, around = params[f"conv{i}"], (padding, padding)
        x = np.pad(x, ((0, 0), around, around, (0, 0)))
        x = np.maximum(numpy_convolution(x, layer["kernel"]) + layer["bias"], 0)
        if is_pooled:
            height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
            x = (
                x[:, :height, :width]
                .reshape(len(x), height // 2, 2, width // 2, 2, -1)
                .max((2, 4))
            )
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = np.maximum(x @ params[name]["kernel"] + params[name]["bias"], 0)
    return x @ params["out"]["kernel"] + params["out"]["bias"]


def numpy_gradients(x, kernel, cotangent):
    height, width = cotangent.shape[1:3]
    of_x, of_kernel = np.zeros(x.shape), np.zeros(kernel.shape)
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            window = np.s_[:, i : i + height, j : j + width]
            of_x[window] += cotangent @ kernel[i, j].T
            of_kernel[i, j] = np.einsum("bhwc,bhwn->cn", x[window], cotangent)
    return of_x, of_kernel


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("image", "kernel"), SHAPES)
def test_output_and_gradients_agree_with_numpy_in_float64(image, kernel, strategy):
    x, w = draw(image, kernel)
    expected = numpy_convolution(x, w)
    (cotangent,) = draw(expected.shape, seed=1)
    with jax.enable_x64(True):
        out, pull = jax.vjp(
            jax.jit(lambda x, w: convolve(x, w, strategy)), jnp.asarray(x), jnp.asarray(w)
        )
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)
        for mine, theirs in zip(
            pull(jnp.asarray(cotangent)), numpy_gradients(x, w, cotangent), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(
    ("strategy", "tolerance"), [("patches", 1e-6), ("winograd", 2e-5), ("xla", 1e-6)]
)
def test_single_precision_loses_little(strategy, tolerance, size):
    """Largest error over largest entry at the size of the paper's conv2; Winograd's matrices lose a decimal digit."""
    x, w = draw((2, 14, 14, 64), (size, size, 64, 8))
    x = np.maximum(x, 0)
    out = convolve(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), strategy)
    expected = numpy_convolution(x, w)
    assert np.abs(out - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_images_and_kernels_may_differ_in_precision(strategy):
    """Under x64, images that were uint8 do."""
    x, w = draw((2, 8, 8, 2), (3, 3, 2, 2))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        out = convolve(jnp.asarray(x), jnp.asarray(w, jnp.float32), strategy)
        assert out.dtype == jnp.float64
    np.testing.assert_allclose(
        out, numpy_convolution(x, w.astype(np.float32)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("strategy", ["patches", "winograd"])
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
    assert resolve("auto", (5, 1, 64, 64)) == "patches"  # tiles would be 6 wide
    assert resolve("auto", (7, 7, 64, 64)) == "patches"
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
