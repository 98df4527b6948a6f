"""Feature shift: rotation and brightness by client."""

import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp

OWNERS = np.array(
    [*(np.arange(23) % 6), 0]
)  # the client of each example; rows of clients with fewer are padded


def federation(dtype=np.uint8, shape=(4, 4)):
    low, high = (-128, 128) if dtype is np.int8 else (0, 256)
    x = np.random.default_rng(0).integers(low, high, (24, *shape)).astype(dtype)
    y = np.arange(24) % 3
    indices = [np.flatnonzero(client == OWNERS) for client in range(6)]
    tests = 255 - x if dtype is np.uint8 else -1 - x
    return srp.data.from_arrays(
        x, y, tests, y, train_indices=indices, test_indices=indices
    ), x


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3)])
def test_groups_of_clients_are_turned(shape):
    data, x = federation(shape=shape)
    shifted = srp.data.shift_features(data)
    for kind, images in (("train", x), ("test", np.asarray(data.x_test))):
        for row, image in enumerate(np.asarray(getattr(shifted, f"x_{kind}"))):
            turns = [0, 1, 2, 3, 0, 1][OWNERS[row]]
            expected = images[row]
            for _ in range(
                turns
            ):  # counterclockwise: the last column becomes the first row
                expected = np.stack([expected[:, -1 - i] for i in range(4)])
            np.testing.assert_array_equal(image, expected)
    np.testing.assert_array_equal(shifted.y_train, data.y_train)
    np.testing.assert_array_equal(shifted.train_indices, data.train_indices)
    np.testing.assert_array_equal(data.x_train, x)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float32])
def test_brightness_by_client(dtype):
    data, x = federation(dtype)
    factors = (0.5, 1.0, 1.5, 2.0, 0.25, 3.0)
    shifted = np.asarray(
        srp.data.shift_features(data, rotations=(0, 180), brightness=factors).x_train
    )
    for row, image in enumerate(x.astype(float)):
        expected = (image[::-1, ::-1] if OWNERS[row] % 2 else image) * factors[
            OWNERS[row]
        ]
        if dtype is not np.float32:
            expected = np.clip(
                np.rint(expected), np.iinfo(dtype).min, np.iinfo(dtype).max
            )
        np.testing.assert_array_equal(shifted[row], expected.astype(dtype))


def test_a_rotation_of_0_changes_nothing_and_one_pool_stays_one():
    data, _ = federation()
    same = srp.data.shift_features(data, rotations=(0,))
    np.testing.assert_array_equal(same.x_train, data.x_train)
    shifted = srp.data.shift_features(srp.data.holdout(data, 0.5))
    assert shifted.x_test is shifted.x_train
    np.testing.assert_array_equal(shifted.x_train, srp.data.shift_features(data).x_train)


def test_refusals():
    data, x = federation(shape=(4, 5))
    srp.data.shift_features(data, rotations=(0, 180))
    flat = srp.data.from_arrays(x.reshape(24, -1), np.arange(24) % 3, x.reshape(24, -1) + 1, np.arange(24) % 3,
                                train_indices=[[0]], test_indices=[[1]])  # fmt: skip
    square, _ = federation()
    for case, options, message in (
        (data, {}, r"data: examples have shape \(4, 5\); give images"),
        (flat, {"rotations": (0,)}, r"data: examples have shape \(20,\); give images"),
        (square, {"rotations": (45,)}, "45"),
        (square, {"brightness": (0.0,)}, "brightness"),
        (square, {"rotations": ()}, r"rotations"),
    ):
        with refused(message):
            srp.data.shift_features(case, **options)
