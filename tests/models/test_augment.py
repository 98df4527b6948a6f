"""Crop and flip: outputs are uniform over shifts and mirror images; augmentation of models and methods."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.models import MLP, CropAndFlip, augmentation

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


def test_images_of_a_batch_keep_their_pixels_and_another_key_moves_them_otherwise():
    x = np.random.default_rng(0).normal(size=(40, 5, 5, 1)).astype(np.float32)
    augment = jax.jit(CropAndFlip(padding=1))
    out = augment(KEY, jnp.asarray(x))
    for i in range(40):
        which(all_variants(x[i], 1, 0), out[i : i + 1])
    assert (np.asarray(augment(jax.random.key(9), jnp.asarray(x))) != out).any()


# Models.


def test_an_augmented_model_differs_in_training_only():
    plain = MLP((6, 6), 3, hidden=(5, 4), cut="fc2")
    augment = CropAndFlip(padding=1)
    model = dataclasses.replace(plain, augment=augment)
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (4, 6, 6))
    other = model.recut("out").recut("fc2")
    assert model.stem_layer_names == other.stem_layer_names == ()

    def every_way(p, x):
        moved = augment(srp.base.named_key(KEY, "augment"), x)
        trained = [m.represent(p.representation, x, KEY) for m in (model, other)]
        trained += [
            m.rest(p.representation, m.stem(p.representation, x), KEY)
            for m in (model, other)
        ]
        return (
            plain.represent(p.representation, moved),
            trained,
            plain.logits(p, x),
            model.logits(p, x),
        )

    expected, trained, judged_plain, judged = jax.jit(every_way)(params, x)
    np.testing.assert_array_equal(judged, judged_plain)
    for features in trained:
        np.testing.assert_allclose(features, expected, rtol=1e-6, atol=1e-6)
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


def plain(data):
    return data


def judged_by_loss(data):
    return srp.data.training_loss(data, srp.models.cross_entropy)


@pytest.mark.parametrize(
    ("dtype", "judged"),
    [(np.uint8, plain), (np.float32, plain), (np.uint8, judged_by_loss)],
)
def test_crop_flip_fills_with_what_black_has_become(dtype, judged):
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.3, 0.4])
    data = judged(
        images(
            dtype,
            **(
                {"scale": 1 / (255 * std), "offset": -mean / std}
                if dtype == np.uint8
                else {}
            ),
        )
    )
    x = data.train_client(jnp.int32(0)).x
    black = -mean / std if dtype == np.uint8 else np.zeros(3)
    out = np.asarray(
        jax.jit(augmentation("crop_flip", data))(KEY, jnp.repeat(x[:1], 50, axis=0))
    )
    filled = np.abs(out - black).max(-1) < 1e-5
    corners = filled[:, 0, 0] | filled[:, -1, -1] | filled[:, 0, -1] | filled[:, -1, 0]
    assert corners.mean() > 0.9  # all but images that were not moved


@pytest.mark.long
@pytest.mark.parametrize("is_by_name", [True, False])
def test_methods_train_with_the_augmentation_that_they_are_given(is_by_name):
    data = images(np.float32, (6, 6))
    model = MLP((6, 6), 4, hidden=(5,))

    def trained(model, **options):
        method = srp.methods.get("fedavg", dataset=data, model=model, **options)
        history = srp.simulate(
            method, data, num_rounds=1, key=KEY, progress=False, devices=1
        )
        return np.concatenate(
            [np.ravel(leaf) for leaf in jax.tree.leaves(history.server_state)]
        )

    given = {"model": "mlp", "hidden": (5,)} if is_by_name else {"model": model}
    found = trained(**given, augment="crop_flip")
    expected = trained(
        dataclasses.replace(model, augment=augmentation("crop_flip", data))
    )
    np.testing.assert_allclose(
        found, expected, rtol=1e-6, atol=1e-6
    )  # weights of size 1 and biases near zero
    assert np.abs(found - trained(**given)).max() > 1e-4


@pytest.mark.parametrize(
    ("data", "augment", "message"),
    [
        (
            images(),
            "crop_flop",
            r"augment='crop_flop' is unknown \(did you mean crop_flip\?\); choose from crop_flip",
        ),
        (
            images(np.float32, (9,)),
            "crop_flip",
            r"CropAndFlip takes images .* not inputs of \(\d+, 9\)",
        ),
    ],
)
def test_unknown_augmentations_and_unfit_data_are_refused(data, augment, message):
    with refused(message):
        method = srp.methods.get("fedavg", dataset=data, augment=augment)
        srp.simulate(method, data, num_rounds=1, key=KEY, progress=False)
