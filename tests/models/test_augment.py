"""Crop and flip: outputs are uniform over shifts and mirror images; augmentation of models and methods."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.models import MLP, CropAndFlip

KEY = jax.random.key(2)


def all_variants(image, padding, fill):
    """Return all crops of the padded image, plain and mirrored, (2, 2p + 1, 2p + 1, h, w, ...)."""
    height, width = image.shape[:2]
    padded = np.empty(
        (height + 2 * padding, width + 2 * padding, *image.shape[2:]), image.dtype
    )
    padded[...] = fill
    padded[padding : padding + height, padding : padding + width] = image
    shifts = range(2 * padding + 1)
    crops = np.array(
        [[padded[i : i + height, j : j + width] for j in shifts] for i in shifts]
    )
    return np.stack([crops, crops[:, :, :, ::-1]])


def which(variants, out):
    """Return the index of the only variant that equals each output."""
    flat = variants.reshape(-1, *variants.shape[3:])
    equal = (
        (flat[None] == np.asarray(out)[:, None]).reshape(len(out), len(flat), -1).all(2)
    )
    assert (equal.sum(1) == 1).all()
    return equal.argmax(1)


@pytest.mark.parametrize("shape", [(9, 8, 3), (8, 9)])
def test_outputs_are_uniform_over_all_crops(shape):
    rng = np.random.default_rng(0)
    image = rng.normal(size=shape).astype(np.float32)
    fill = np.float32([-1.5, 2.5, 0.5]) if len(shape) == 3 else np.float32(-3)
    draws, kinds = 3000, 2 * 9 * 9
    batch = jnp.broadcast_to(image, (draws, *shape))
    chosen = which(
        all_variants(image, 4, fill),
        jax.jit(CropAndFlip(padding=4, fill=fill))(KEY, batch),
    )
    counts = np.bincount(chosen, minlength=kinds)
    assert (counts > 0).all()
    chi_square = np.sum((counts - draws / kinds) ** 2) / (draws / kinds)
    assert abs(chi_square - (kinds - 1)) < 5 * np.sqrt(2 * (kinds - 1))


# Models.


def test_an_augmented_model_differs_in_training_only():
    plain = MLP((6, 6), 3, hidden=(5, 4), cut="fc2")
    augment = CropAndFlip(padding=1)
    model = dataclasses.replace(plain, augment=augment)
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (4, 6, 6))
    assert model.stem_layer_names == ()
    moved = augment(srp.named_key(KEY, "augment"), x)
    expected = plain.represent(params.representation, moved)
    stem = model.stem(params.representation, x)
    for trained in (
        model.represent(params.representation, x, KEY),
        model.rest(params.representation, stem, KEY),
    ):
        np.testing.assert_allclose(trained, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(model.logits(params, x), plain.logits(params, x))
    assert (plain.represent(params.representation, x) != expected).any()


# By name.


def images(dtype=np.uint8, shape=(16, 16, 3), **options):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (8, *shape)).astype(dtype)
    if dtype is not np.uint8:
        x /= 7  # else whole numbers that look like bytes
    rows = [[0, 1, 2, 3], [4, 5, 6, 7]]
    y = np.arange(8) % 4
    return srp.data.from_arrays(
        x, y, x[:, ::-1].copy(), y, train_indices=rows, test_indices=rows, **options
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_crop_flip_fills_with_what_black_has_become(dtype):
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.3, 0.4])
    if dtype == np.uint8:
        black = -mean / std
        data = images(dtype, scale=1 / (255 * std), offset=black)
    else:
        black = np.zeros(3)
        data = images(dtype)
    x = data.train_client(jnp.int32(0)).x
    out = np.asarray(
        jax.jit(srp.models.augmentation("crop_flip", data))(
            KEY, jnp.repeat(x[:1], 50, axis=0)
        )
    )
    filled = np.abs(out - black).max(-1) < 1e-5
    corners = filled[:, 0, 0] | filled[:, -1, -1] | filled[:, 0, -1] | filled[:, -1, 0]
    assert corners.mean() > 0.9  # all but images that were not moved
