"""Rows that are trained on and tested on, found by their place in memory and by their values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

# pairs of equal rows at one client; that none is found has a probability of exp(-5)
EXPECTED_TWINS = 5
BLOCK = 4096  # rows hashed at a time


def row_addresses(array: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return where each row begins in memory, (n,), and what else two views of one row have in common."""
    begin = array.__array_interface__["data"][0]
    addresses = begin + array.strides[0] * np.arange(len(array), dtype=np.int64)
    return addresses, (array.dtype, array.shape[1:], array.strides[1:])


def check_memory(
    x_train: np.ndarray, x_test: np.ndarray, rows_train: np.ndarray, rows_test: np.ndarray
) -> None:
    """Raise a ValueError of one line if a test row and a training row are one row in memory."""
    if not x_train.size or not x_test.size or not np.may_share_memory(x_train, x_test):
        return
    addresses_train, layout_train = row_addresses(x_train)
    addresses_test, layout_test = row_addresses(x_test)
    if layout_train != layout_test:
        return
    is_shared = np.isin(addresses_test[rows_test], addresses_train[rows_train])
    if is_shared.any():
        raise ValueError(
            f"test_indices: example {rows_test[np.argmax(is_shared)]} is in "
            f"train_indices too ({np.count_nonzero(is_shared)} of {len(rows_test)} test "
            "examples are), and x_test is a view of x_train; leave out of test_indices "
            "what a client trains on"
        )


def check_values(
    x_train: np.ndarray,
    x_test: np.ndarray,
    clients_train: Sequence[np.ndarray],
    rows_test: np.ndarray,
    names: tuple[str, str] = ("train_indices", "x_test"),
) -> None:
    """Refuse test rows that all equal training rows.

    Warn of some, and of rows that clients share.

    Equal rows occur in good data too: short texts, tables of few categories. There,
    training rows equal each other as often as test rows equal training rows, and rows
    repeat within clients as they do between them. Rows of one value, such as blank
    images, are not counted. `names` are the arguments, for messages.
    """
    rows_train = np.concatenate(clients_train)
    owners = np.repeat(
        np.arange(len(clients_train)), [len(rows) for rows in clients_train]
    )
    digests, is_blank = _digests(x_train, rows_train)
    tests, is_blank_test = _digests(x_test, rows_test)
    digests = digests[~is_blank]
    owners = owners[~is_blank]
    tests = tests[~is_blank_test]
    num_train = len(digests)
    num_test = len(tests)
    if not num_train:
        return
    counts = np.unique(digests, return_counts=True)[1]
    num_repeated = int(counts[counts > 1].sum())
    num_seen = int(np.isin(tests, digests).sum())
    if 1 < num_test == num_seen and num_repeated < num_train / 2:
        raise ValueError(
            f"{names[1]}: all {num_test} test examples equal training examples, so "
            "clients would be tested on what they train on; give others (of one array, "
            "disjoint rows for training and test)"
        )
    num_expected = 2 * num_repeated * num_test / num_train
    if num_seen > max(1, num_expected):  # one may be an accident
        warnings.warn(
            f"{names[1]}: {num_seen} of {num_test} test examples equal training "
            f"examples (of {num_train} training examples, {num_repeated} equal each "
            "other); give others for the test",
            stacklevel=5,
        )
    if _are_shared(digests, owners, counts):
        warnings.warn(
            f"{names[0]}: {num_repeated} of {num_train} training examples equal an "
            "example of another client, and none equals one of its own client, as if "
            "clients had drawn from one pool with replacement; give each example to "
            "one client",
            stacklevel=5,
        )


def _digests(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a 64-bit hash of each row, (n,), and True for rows of one value.

    Two of a million different rows have the same hash with a probability of 3e-8.
    """
    digests = np.empty(len(rows), np.int64)
    is_blank = np.empty(len(rows), bool)
    for begin in range(0, len(rows), BLOCK):
        block = x[rows[begin : begin + BLOCK]]
        block = block.reshape(len(block), -1)
        digests[begin : begin + BLOCK] = [hash(row.tobytes()) for row in block]
        is_blank[begin : begin + BLOCK] = (block == block[:, :1]).all(axis=1)
    return digests, is_blank


def _are_shared(digests: np.ndarray, owners: np.ndarray, counts: np.ndarray) -> bool:
    """Return True if equal rows are never at one client, though chance would bring many of them together."""
    at_one_client = np.unique(np.stack([digests, owners]), axis=1).shape[1] < len(digests)
    if at_one_client or len(digests) < 2:
        return False
    num_pairs = float((counts * (counts - 1)).sum()) / 2
    sizes = np.bincount(owners).astype(float)
    # that two rows have one owner
    chance = (sizes * (sizes - 1)).sum() / (sizes.sum() * (sizes.sum() - 1))
    return num_pairs * chance >= EXPECTED_TWINS
