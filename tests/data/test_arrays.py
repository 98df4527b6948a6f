"""`from_arrays`: errors with argument, value and remedy, byte order and defaults."""

import re

import jax
import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import from_arrays, partition


def build(**changes):
    x = np.zeros((6, 2), np.float32)
    arguments = {
        "x_train": x,
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": x.copy(),
        "y_test": np.array([0, 1, 2, 0, 1, 2]),
        "train_indices": [[0, 1], [2, 3]],
        "test_indices": [[0], [5]],
    }
    return from_arrays(**arguments | changes)


def with_value(value, dtype=np.float32):
    x = np.zeros((6, 2), dtype)
    x[3, 1] = value
    return x


MASKED = np.ma.masked_array(np.zeros((6, 2), np.float32), np.eye(6, 2))
PLAIN = " is not a plain array (it has a mask, which would be lost: leave masked examples out, or fill them)"

ERRORS = {
    "x_train[3, 1]: nan is not finite as float32; repair the example": {
        "x_train": with_value(np.nan)
    },
    "x_test[3, 1]: inf is not finite": {"x_test": with_value(np.inf)},
    "x_train[3, 1]: 1e+300 is not finite as float32": {
        "x_train": with_value(1e300, np.float64)
    },
    "x_train[3, 1]: 4294967297 is too large for int32; repair the example, or turn on jax_enable_x64": {
        "x_train": with_value(2**32 + 1, np.int64),
        "x_test": np.zeros((6, 2), np.int64),
    },
    "x_train: is <U1 of shape (6, 2); give floats or integers": {
        "x_train": np.full((6, 2), "a")
    },
    "x_train: is bool of shape (6, 2); give floats": {"x_train": np.zeros((6, 2), bool)},
    "x_train: is float64 of shape (); give floats or integers, one example per row": {
        "x_train": 1.0
    },
    "x_test: examples are (3,) float32, those of x_train are (2,) float32; give both": {
        "x_test": np.zeros((6, 3), np.float32)
    },
    "x_test: examples are (2,) uint8, those of x_train are (2,) float32": {
        "x_test": np.zeros((6, 2), np.uint8)
    },
    "y_train: is int64 of shape (5,); give one integer class number for each of the 6 examples of x_train, e.g.": {
        "y_train": np.zeros(5, int)
    },
    "y_test: is float64 of shape (6, 3); give one integer class number": {
        "y_test": np.eye(6, 3)
    },
    "y_train: is float64 of shape (6,); give one integer class number": {
        "y_train": np.zeros(6)
    },
    "y_train: is <U1 of shape (6,); give one integer class number": {
        "y_train": np.full(6, "a")
    },
    "y_test[2]: label -1 is outside 0..1048575; number the classes from 0": {
        "y_test": np.array([0, 1, -1, 0, 1, 2])
    },
    "num_classes=2: there is a label 2, but labels must be 0..num_classes-1; use num_classes=3": {
        "num_classes": 2
    },
    "num_classes=2147483647 must be at most 1048576": {"num_classes": 2**31 - 1},
    "train_indices lists 2 clients and test_indices 3; give both one": {
        "test_indices": [[0], [1], [2]]
    },
    "train_indices lists 0 clients and test_indices 0; give": {
        "train_indices": [],
        "test_indices": [],
    },
    "train_indices: client 1 has no train examples; give it one or leave it out": {
        "train_indices": [[0], []]
    },
    "train_indices[1]: has index 6; give row numbers in 0..5": {
        "train_indices": [[0], [1, 6]]
    },
    "test_indices[0]: has index -1; give row numbers": {"test_indices": [[-1], [1]]},
    "train_indices[0]: is bool of shape (6,); give row numbers in 0..5 (np.flatnonzero converts a boolean mask)": {
        "train_indices": [np.ones(6, bool), [1]]
    },
    "train_indices: example 2 belongs to clients 0 and 1; give each example to one": {
        "train_indices": [[0, 2], [2]]
    },
    "test_indices: example 1 is listed twice for client 1": {
        "test_indices": [[0], [1, 1]]
    },
    "scale=array([1., 1., 1.]): must be finite as float32, not 0, and broadcast over examples of shape (2,)": {
        "scale": np.ones(3)
    },
    "offset=array([[1., 1.], [1., 1.]]): must be finite as float32 and broadcast over": {
        "offset": np.ones((2, 2))
    },
    "scale=nan: must be finite": {"scale": np.nan},
    "scale=[1.0, 0.0]: must be finite as float32, not 0, and": {"scale": [1.0, 0.0]},
    "scale=1e-50: must be finite as float32, not 0, and": {"scale": 1e-50},
    f"x_train:{PLAIN}": {"x_train": MASKED},
    f"x_test:{PLAIN}": {"x_test": [*MASKED]},
    f"y_train:{PLAIN}": {"y_train": [0, 1, 2, 0, 1, np.ma.masked]},
    f"y_test:{PLAIN}": {"y_test": np.ma.masked_equal([0, 1, 2, 0, 1, 2], 2)},
    f"train_indices[0]:{PLAIN}": {
        "train_indices": np.ma.masked_equal([[0, 1], [2, 3]], 1)
    },
    f"scale:{PLAIN}": {"scale": np.ma.masked_equal([1.0, 2.0], 2)},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with refused("^" + re.escape(message)):
        build(**ERRORS[message])


def test_bytes_in_the_other_order_are_the_same_numbers():
    """HDF5, FITS and IDX files have big-endian numbers."""
    native = {
        "x_train": np.arange(12.0).reshape(6, 2).astype(np.float32),
        "y_train": np.arange(6) % 3,
        "train_indices": np.array([[0, 1], [2, 3]]),
        "scale": np.array([0.5, 2.0]),
    }
    swapped = {
        name: value.astype(value.dtype.newbyteorder(">"))
        for name, value in native.items()
    }
    assert all(value.dtype.byteorder == ">" for value in swapped.values())
    jax.tree.map(np.testing.assert_array_equal, build(**native), build(**swapped))
    for function, options in (
        (partition.by_classes, {"classes_per_client": 2}),
        (partition.dirichlet, {"alpha": 0.5}),
    ):
        parts = [
            function(given["y_train"], given["y_train"], 2, **options)
            for given in (native, swapped)
        ]
        jax.tree.map(np.testing.assert_array_equal, *parts)


def test_one_pool_must_be_disjoint():
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, int)
    from_arrays(x, y, x, y, train_indices=[[0], [1]], test_indices=[[2], [3]])
    with refused("test_indices: example 1 is in train_indices too"):
        from_arrays(x, y, x, y, train_indices=[[0], [1]], test_indices=[[2], [1]])


def test_defaults():
    data = build()
    assert (data.num_classes, data.num_clients, data.name) == (3, 2, "arrays")
    assert data.scale is data.offset is None
    assert build(y_train=np.array([0, 1, 2, 0, 1, 2], np.uint8)).y_train.dtype == np.int32
    assert build(num_classes=7).num_classes == 7
    assert build(x_train=[[0.0, 1.0]] * 6).example_shape == (2,)


def test_rows_of_clients_may_come_from_generators():
    given = build(
        train_indices=(np.array(rows) for rows in ([0, 1], [2])),
        test_indices=([i] for i in range(2)),
    )
    assert (given.num_clients, given.train_counts.tolist()) == (2, [2, 1])
