"""Feature shift: rotation and brightness by client."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from reference.small import refused

from fedjax_srp.data import from_arrays, holdout, shift_features

# the client of each example; rows of clients with fewer are padded
OWNERS = np.array([*(np.arange(23) % 6), 0])


def federation(dtype=np.uint8, shape=(4, 4)):
    rng = np.random.default_rng(0)
    x, tests = rng.integers(0, 256, (2, 24, *shape), dtype=np.uint8).astype(dtype)
    y = np.arange(24) % 3
    rows = [np.flatnonzero(client == OWNERS) for client in range(6)]
    return from_arrays(x, y, tests, y, train_indices=rows, test_indices=rows), x


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3)])
def test_groups_of_clients_are_turned(shape):
    data, x = federation(shape=shape)
    shifted = shift_features(data)
    for kind, images in (("train", x), ("test", np.asarray(data.x_test))):
        for row, image in enumerate(np.asarray(getattr(shifted, f"x_{kind}"))):
            expected = images[row]
            for _ in range(OWNERS[row] % 4):
                # counterclockwise: the last column becomes the first row
                expected = np.stack([expected[:, -1 - i] for i in range(4)])
            assert_array_equal(image, expected)
    assert_array_equal(shifted.y_train, data.y_train)
    assert_array_equal(shifted.train_indices, data.train_indices)
    assert_array_equal(data.x_train, x)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float32])
def test_brightness_by_client(dtype):
    data, x = federation(dtype)
    factors = (0.5, 1.0, 1.5, 2.0, 0.25, 3.0)
    options = {"rotations": (0, 180), "brightness": factors}
    shifted = np.asarray(shift_features(data, **options).x_train)
    for row, image in enumerate(x.astype(float)):
        owner = OWNERS[row]
        expected = np.rot90(image, 2 * (owner % 2)) * factors[owner]
        if dtype is not np.float32:
            limits = np.iinfo(dtype)
            expected = np.clip(np.rint(expected), limits.min, limits.max)
        assert_array_equal(shifted[row], expected.astype(dtype))


def test_a_rotation_of_0_changes_nothing_and_one_pool_stays_one():
    data, _ = federation()
    same = shift_features(data, rotations=(0,))
    assert_array_equal(same.x_train, data.x_train)
    shifted = shift_features(holdout(data, 0.5))
    assert shifted.x_test is shifted.x_train
    assert_array_equal(shifted.x_train, shift_features(data).x_train)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 5), {}, r"data: examples have shape \(4, 5\); give images"),
        ((20,), {"rotations": (0,)}, r"data: examples have shape \(20,\); give images"),
        ((4, 4), {"rotations": (45,)}, "45"),
        ((4, 4), {"brightness": (0.0,)}, "brightness"),
        ((4, 4), {"rotations": ()}, "rotations=.*give at least one"),
    ],
)
def test_refusals(shape, options, message):
    data, _ = federation(shape=shape)
    with refused(message):
        shift_features(data, **options)


def test_a_half_turn_needs_no_square():
    data, x = federation(shape=(4, 5))
    shifted = shift_features(data, rotations=(180,))
    assert_array_equal(shifted.x_train, x[:, ::-1, ::-1])
