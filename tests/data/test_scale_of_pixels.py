"""The same images give the same inputs through every door, or a warning."""

import warnings

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference.small import refused

import fedjax_srp as srp

BYTES = np.random.default_rng(0).integers(0, 256, (12, 8, 8)).astype(np.uint8)
SIXTEENTHS = np.minimum(BYTES // 15, 16).astype(np.uint8)
Y = np.arange(12) % 2
ROWS = {"train_indices": [range(4)], "test_indices": [range(4, 8)]}


def inputs(x, **options):
    data = srp.data.from_arrays(x, Y, x, Y, **ROWS, **options)
    return np.asarray(data.train_client(0).x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_floats_of_bytes_are_said_and_the_remedy_gives_the_inputs_of_bytes(dtype):
    with pytest.warns(
        UserWarning,
        match=r"^x_train: .* whole numbers 0..255.*give scale=1/255 for 0..1, or scale=1.0",
    ):
        inputs(BYTES.astype(dtype))
    assert_allclose(inputs(BYTES.astype(dtype), scale=1 / 255), inputs(BYTES), rtol=1e-6)
    assert inputs(BYTES.astype(dtype), scale=1.0).max() == BYTES[:4].max()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_of_another_scale_are_said(dtype):
    largest = SIXTEENTHS.max()
    with pytest.warns(
        UserWarning, match=rf"^x_train: .*{largest}.*give scale=1/{largest}"
    ):
        inputs(SIXTEENTHS.astype(dtype))
    assert inputs(SIXTEENTHS.astype(dtype), scale=1 / largest).max() <= 1.0


def test_files_are_said_too(tmp_path):
    x = BYTES.astype(np.float32)
    columns = {"image": list(x), "label": Y}
    arrays = {"x_train": x, "y_train": Y, "x_test": 255 - x, "y_test": Y}
    np.savez(tmp_path / "mine.npz", **arrays)
    np.savez(tmp_path / "scaled.npz", **arrays, scale=1 / 255)
    for door, remedy in (
        (
            lambda: srp.data.load(tmp_path / "mine.npz", 2),
            lambda: srp.data.load(tmp_path / "scaled.npz", 2),
        ),
        (
            lambda: srp.data.from_huggingface({"train": columns}, 2),
            lambda: srp.data.from_huggingface({"train": columns}, 2, scale=1 / 255),
        ),
    ):
        with pytest.warns(UserWarning, match="x_train: float32 inputs are whole numbers"):
            door()
        assert 0.9 < remedy().train_client(0).x.max() <= 1.0


@pytest.mark.parametrize(
    "x",
    [
        BYTES,
        BYTES / 255.0,
        BYTES / 255.0 - 0.5,
        BYTES.reshape(12, 64)[:, :20].astype(np.float32),  # a table
        BYTES.reshape(12, 64).astype(np.int32),  # tokens
        (BYTES > 127).astype(np.float32),  # black and white
    ],
)
def test_other_inputs_pass(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs(x)


def test_channels_first_are_refused_under_crop_and_flip():
    augment = srp.models.CropAndFlip(padding=1)
    with refused(
        r"inputs of \(2, 3, 8, 8\) have their channels first; move them with np.moveaxis"
    ):
        augment(jax.random.key(0), np.zeros((2, 3, 8, 8), np.float32))
    images = jax.eval_shape(augment, jax.random.key(0), np.zeros((2, 8, 8, 3)))
    assert images.shape == (2, 8, 8, 3)
