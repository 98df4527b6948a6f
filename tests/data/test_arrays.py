"""What `from_arrays` refuses, and that it says what, which value and what to do."""

import re

import numpy as np
import pytest

from fedjax_srp.data import from_arrays


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


ERRORS = {
    "x_train[3, 1]: nan is not finite as float32; remove or repair": {"x_train": with_value(np.nan)},
    "x_test[3, 1]: inf is not finite": {"x_test": with_value(np.inf)},
    "x_train[3, 1]: 1e+300 is not finite as float32": {"x_train": with_value(1e300, np.float64)},
    "x_train[3, 1]: 4294967297 is too large for int32; use smaller integers or": {
        "x_train": with_value(2**32 + 1, np.int64),
        "x_test": np.zeros((6, 2), np.int64),
    },
    "x_train: dtype is <U1; inputs are floats or integers": {"x_train": np.full((6, 2), "a")},
    "x_train: dtype is bool; inputs are floats": {"x_train": np.zeros((6, 2), bool)},
    "x_train: is a single number": {"x_train": 1.0},
    "x_test: examples are (3,) float32, those of x_train are (2,) float32; prepare both": {
        "x_test": np.zeros((6, 3), np.float32)
    },
    "x_test: examples are (2,) uint8, those of x_train are (2,) float32": {"x_test": np.zeros((6, 2), np.uint8)},
    "y_train: shape is (5,) but x_train has 6 examples; give one class number": {"y_train": np.zeros(5, int)},
    "y_test: shape is (6, 3) but x_test has 6 examples; give one class number per example (one-hot rows: argmax(-1))": {
        "y_test": np.eye(6, 3)
    },
    "y_train: dtype is float64; labels are integers, e.g. y_train.astype('int32')": {"y_train": np.zeros(6)},
    "y_test[2]: label -1 is negative; number the classes from 0": {"y_test": np.array([0, 1, -1, 0, 1, 2])},
    "y_train: label 4294967296 does not fit int32": {"y_train": np.full(6, 2**32)},
    "num_classes=2: there is a label 2; labels are 0..num_classes-1, use num_classes=3": {"num_classes": 2},
    "test_indices: lists 3 clients and train_indices 2; give both one entry": {"test_indices": [[0], [1], [2]]},
    "train_indices: lists no clients; give": {"train_indices": [], "test_indices": []},
    "train_indices[1]: client 1 has no train examples; give it one or leave it out": {"train_indices": [[0], []]},
    "test_indices[0]: client 0 has no test examples": {"test_indices": [[], [1]]},
    "train_indices[1]: index 6 is out of range for 6 examples; indices are 0..5": {"train_indices": [[0], [1, 6]]},
    "test_indices[0]: index -1 is out of range": {"test_indices": [[-1], [1]]},
    "train_indices[0]: is bool of shape (6,); give a list of row numbers (boolean mask: np.flatnonzero)": {
        "train_indices": [np.ones(6, bool), [1]]
    },
    "train_indices[0]: is float64 of shape (1,)": {"train_indices": [[0.0], [1]]},
    "train_indices: example 2 belongs to clients 0 and 1; give each example to one": {"train_indices": [[0, 2], [2]]},
    "test_indices: example 1 is listed twice for client 1": {"test_indices": [[0], [1, 1]]},
    "scale: shape (3,) does not broadcast over examples of shape (2,); give one number": {"scale": np.ones(3)},
    "offset: shape (6, 2) does not broadcast over examples of shape (2,)": {"offset": np.ones((6, 2))},
    "scale=nan: must be finite": {"scale": np.nan},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as error:
        build(**ERRORS[message])
    assert "\n" not in str(error.value)


def test_one_pool_must_be_disjoint():
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, int)
    from_arrays(x, y, x, y, train_indices=[[0], [1]], test_indices=[[2], [3]])
    with pytest.raises(ValueError, match="test_indices: example 1 is in train_indices too"):
        from_arrays(x, y, x, y, train_indices=[[0], [1]], test_indices=[[2], [1]])


def test_defaults():
    data = build()
    assert (data.num_classes, data.num_clients, data.name) == (3, 2, "arrays")
    assert data.scale is data.offset is None
    assert build(y_train=np.array([0, 1, 2, 0, 1, 2], np.uint8)).y_train.dtype == np.int32
    assert build(num_classes=7).num_classes == 7
    assert build(x_train=[[0.0, 1.0]] * 6).example_shape == (2,)
