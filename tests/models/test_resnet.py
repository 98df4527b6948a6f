"""ResNet-18 against a layer-by-layer version with JAX's convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp

KEY = jax.random.key(0)
SMALL = {"channels": (4, 4, 8, 8)}


def convolved(x, layer, stride=1):
    kernel = layer["conv"]["kernel"]
    around = [(kernel.shape[0] // 2,) * 2] * 2
    return jax.lax.conv_general_dilated(
        x, kernel, (stride,) * 2, around, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def by_batch(x, norm, is_real):
    """Normalise by the statistics of the real examples' pixels."""
    real = np.asarray(x)[np.asarray(is_real)].reshape(-1, x.shape[-1])
    return (x - real.mean(0)) / np.sqrt(real.var(0) + 1e-5) * norm["scale"] + norm["bias"]


def by_running(x, norm, is_real):
    held = norm["batch_stats"]
    return (x - held["mean"]) / np.sqrt(held["var"] + 1e-5) * norm["scale"] + norm["bias"]


def by_group(x, norm, is_real):
    """Normalise by the statistics of each example's two groups of channels."""
    parts = x.reshape(len(x), -1, 2, x.shape[-1] // 2)
    mean = parts.mean((1, 3), keepdims=True)
    var = parts.var((1, 3), keepdims=True)
    found = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    return found * norm["scale"] + norm["bias"]


def resnet(params, x, normalised, is_real):
    """He et al., 2016, table 1 and section 4.2: the logits of a batch, layer by layer."""
    layers = jax.tree.map(np.asarray, {**params.representation, **params.head})

    def unit(x, layer, stride, held):
        """`held`: the statistics of the unit's layer, which flax nests as it nests modules."""
        return normalised(
            np.asarray(convolved(x, layer, stride)),
            layer["norm"] | {"batch_stats": held},
            is_real,
        )

    x = np.maximum(
        unit(x, layers["conv1"], 1, layers["conv1"].get("batch_stats", {}).get("norm")), 0
    )
    for number in range(1, 9):
        block, stride = layers[f"block{number}"], 2 if number in (3, 5, 7) else 1
        held = {name: part["norm"] for name, part in block.get("batch_stats", {}).items()}
        out = np.maximum(unit(x, block["first"], stride, held.get("first")), 0)
        out = unit(out, block["second"], 1, held.get("second"))
        if "shortcut" in block:
            x = unit(x, block["shortcut"], stride, held.get("shortcut"))
        x = np.maximum(out + x, 0)
    return x.mean((1, 2)) @ layers["out"]["kernel"] + layers["out"]["bias"]


def drawn(model):
    """Return parameters whose scales, biases and statistics are neither 0 nor 1."""
    rng = np.random.default_rng(0)

    def one(leaf):
        values = rng.normal(size=leaf.shape)
        if leaf.ndim > 1:
            return jnp.float32(values / np.sqrt(values[..., 0].size))
        return jnp.float32(1 + 0.1 * np.abs(values))

    return jax.tree.map(one, jax.eval_shape(model.init, KEY))


@pytest.mark.short("trained", "group")
@pytest.mark.parametrize("case", ["judged", "trained", "group"])
def test_layer_by_layer(case):
    norm = "group" if case == "group" else "batch"
    model = srp.models.ResNet18((9, 8, 3), 4, norm=norm, **SMALL)
    params, x = drawn(model), jax.random.normal(KEY, (5, 9, 8, 3))
    is_real = jnp.asarray([True, True, True, False, True])
    normalised = {"judged": by_running, "trained": by_batch, "group": by_group}[case]
    expected = resnet(params, x, normalised, is_real)
    with srp.models.normalization.example_weights(is_real.astype(float)):
        key = KEY if case == "trained" else None
        found = jax.jit(lambda params, x: model.logits(params, x, key))(params, x)
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-4 * np.abs(expected).max()
    )
