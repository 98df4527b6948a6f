"""`from_arrays`: errors say what was found, and what to do; byte order and defaults."""

import re

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from reference.small import refused

from fedjax_srp.data import from_arrays, partition

X = np.zeros((6, 2), np.float32)
Y = np.arange(6) % 3
MASKED = np.ma.masked_array(X, np.eye(6, 2))
PLAIN = "is not a plain array (it has a mask, which would be lost"
SHARED = "must be finite as float32, not 0, and broadcast over examples of shape (2,)"
REMEDY = (
    "(give|repair|renumber|number|use|put|leave|pad|fill) |np.flatnonzero|must be at most"
)


def build(**changes):
    arguments = {
        "x_train": X,
        "y_train": Y,
        "x_test": X.copy(),
        "y_test": Y,
        "train_indices": [[0, 1], [2, 3]],
        "test_indices": [[0], [5]],
    }
    return from_arrays(**arguments | changes)


def with_value(value, dtype=np.float32):
    x = np.zeros((6, 2), dtype)
    x[3, 1] = value
    return x


ERRORS = [
    ("x_train", with_value(np.nan), "[3, 1]: nan is not finite as float32"),
    ("x_train", with_value(1e300, float), "[3, 1]: 1e+300 is not finite as float32"),
    ("x_train", with_value(2**32 + 1, int), "[3, 1]: 4294967297 is too large for int32"),
    ("x_train", np.full((6, 2), "a"), ": is <U1 of shape (6, 2)"),
    ("x_train", 1.0, ": is float64 of shape ()"),
    ("x_test", np.zeros((6, 3), np.float32), ": examples are (3,) float32, those of"),
    ("x_test", np.zeros((6, 2), np.uint8), ": examples are (2,) uint8, those of"),
    ("x_train", {"ann": X, "bob": X}, ": is a dict of ['ann', 'bob']; put"),
    (
        "x_train",
        [[1.0, 2.0]] * 3 + [[1.0]],
        ": is not a plain array (row 3 has length 1 and row 0 length 2: pad",
    ),
    (
        "x_train",
        [[1.0, 2.0], 3.0],
        ": is not a plain array (row 1 has a single value and row 0 length 2",
    ),
    ("y_train", np.zeros(5, int), ": is int64 of shape (5,); give one integer class"),
    ("y_test", np.eye(6, 3), ": is float64 of shape (6, 3)"),
    ("y_test", Y - 1, "[0]: label -1 is outside 0..1048575"),
    ("num_classes", 2, "=2: there is a label 2, but labels must be"),
    ("num_classes", 2**31 - 1, "=2147483647 must be at most 1048576"),
    ("train_indices", [], " lists 0 clients and test_indices 2"),
    ("train_indices", [[0], []], ": client 1 has no train examples"),
    ("train_indices", [[0], [1, 6]], "[1]: has index 6; give row numbers in 0..5"),
    ("train_indices", [np.ones(6, bool), [1]], "[0]: is bool of shape (6,)"),
    ("train_indices", [[0, 2], [2]], ": example 2 belongs to clients 0 and 1"),
    ("test_indices", [[0], [1, 1]], ": example 1 is listed twice for client 1"),
    ("train_indices", {"ann": [0]}, ": only this is a dict of clients"),
    ("client_names", ["ann"], ": has 1 names for 2 clients"),
    ("client_names", ["ann", "ann"], ": 'ann' is there twice"),
    ("client_names", [3], ": 3 is not a text; give list(map(str"),
    ("scale", np.ones(3), f"=array([1., 1., 1.]): {SHARED}"),
    ("offset", np.ones((2, 2)), "=array([[1., 1.], [1., 1.]]): must be finite as"),
    ("scale", "a", f"='a': {SHARED}"),
    ("scale", [1.0, 0.0], f"=[1.0, 0.0]: {SHARED}"),
    ("scale", 1e-50, f"=1e-50: {SHARED}"),
    ("x_train", MASKED, f": {PLAIN}"),
    ("x_test", [*MASKED], f": {PLAIN}"),
    ("y_train", [0, 1, 2, 0, 1, np.ma.masked], f": {PLAIN}"),
    ("train_indices", np.ma.masked_equal([[0, 1], [2, 3]], 1), f"[0]: {PLAIN}"),
    ("scale", np.ma.masked_equal([1.0, 2.0], 2), f": {PLAIN}"),
]


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    ERRORS,
    ids=[name + text for name, _, text in ERRORS],
)
def test_errors(argument, value, message):
    with refused(f"^{argument}{re.escape(message)}") as caught:
        build(**{argument: value})
    text = str(caught.value)
    assert re.search(REMEDY, text)
    assert "x64" not in text or np.isfinite(value).all()


def test_dicts_of_rows_are_matched_by_name():
    rows = {"bob": [0], "ann": [1, 2]}
    data = build(train_indices=rows, test_indices={"ann": [3], "bob": [4, 5]})
    assert data.client_names == ("bob", "ann")
    assert data.train_counts.tolist() == [1, 2]
    assert data.test_counts.tolist() == [2, 1]
    with refused(r"test_indices: \['ann', 'cy'\] are in one of .*give both the same"):
        build(train_indices=rows, test_indices={"cy": [3], "bob": [4, 5]})
    with refused("client_names: are the keys of train_indices.*leave client_names out"):
        build(train_indices=rows, test_indices=rows, client_names=["bob", "ann"])


def test_bytes_in_the_other_order_are_the_same_numbers():
    """HDF5, FITS and IDX files have big-endian numbers."""
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    native = build(x_train=x, y_train=Y, train_indices=np.array([[0, 1], [2, 3]]))
    swapped = build(
        x_train=x.astype(">f4"),
        y_train=Y.astype(">i8"),
        train_indices=np.array([[0, 1], [2, 3]], ">i8"),
    )
    jax.tree.map(assert_array_equal, native, swapped)
    parts = [partition.dirichlet(y, y, 2, 0.5) for y in (Y, Y.astype(">i8"))]
    jax.tree.map(assert_array_equal, *parts)


def test_one_pool_with_disjoint_rows():
    data = build(x_test=X, test_indices=[[4], [5]])
    assert data.x_test is data.x_train


def test_defaults():
    data = build()
    assert (data.num_classes, data.num_clients, data.name) == (3, 2, "arrays")
    assert data.scale is data.offset is None
    assert build(y_train=Y.astype(np.uint8)).y_train.dtype == np.int32
    assert build(num_classes=7).num_classes == 7
    assert build(x_train=[[0.0, 1.0]] * 6).example_shape == (2,)


def test_rows_of_clients_may_come_from_generators():
    data = build(
        train_indices=(np.array(rows) for rows in ([0, 1], [2])),
        test_indices=([i] for i in range(2)),
    )
    assert data.train_counts.tolist() == [2, 1]
