"""Rows that are trained on and tested on, or that clients share, however they came."""

import warnings

import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import from_arrays, overlap

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5)).astype(np.float32)
DEAL = np.split(np.arange(24), 3)


def build(x_test, x_train=X, train=DEAL, test=DEAL):
    return from_arrays(
        x_train,
        np.zeros(len(x_train), int),
        x_test,
        np.zeros(len(x_test), int),
        train_indices=train,
        test_indices=test,
    )


VIEWS = {
    "the array": X,
    "a part in reverse": X[10:0:-1],
    "every second row": X[::2],
    "read only": np.frombuffer(X.data, np.float32).reshape(24, 5),
}


@pytest.mark.parametrize("view", VIEWS)
def test_rows_in_memory_are_refused(view):
    with refused(
        r"test_indices: example \d+ is in train_indices too .*leave out of test_indices"
    ):
        build(VIEWS[view], test=[[0], [1], [2]])


def test_views_of_other_rows_are_no_overlap():
    train = np.split(np.arange(20), 2)
    assert build(X[20:], train=train, test=[[0, 1], [2, 3]]).num_clients == 2
    halves = np.split(np.arange(12), 3)
    assert build(X[1::2], X[::2], train=halves, test=halves).num_clients == 3


@pytest.mark.parametrize(
    "change",
    [np.copy, lambda x: x.astype(">f4"), lambda x: x[::-1].copy(), lambda x: x.tolist()],
)
def test_copies_of_all_rows_are_refused(change):
    with refused(
        r"x_test: all 24 test examples equal training examples.* give others .of one array, disjoint rows"
    ):
        build(change(X))


def test_copies_of_some_rows_give_a_warning_with_their_number(monkeypatch):
    monkeypatch.setattr(overlap, "BLOCK", 5)  # rows are hashed block by block
    mixed = np.concatenate([X[:6], X[6:] + 1])
    with pytest.warns(
        UserWarning, match=r"^x_test: 6 of 24 test examples equal tr.*; give others"
    ):
        build(mixed)


QUESTIONS = RNG.integers(0, 2, (48, 3)).astype(float)
GOOD = {
    "blank images": (np.zeros((24, 4, 4)), np.zeros((24, 4, 4))),
    "a few blank images": (
        np.concatenate([X[:20], 0 * X[20:]]),
        np.concatenate([X[:20] + 1, 0 * X[20:]]),
    ),
    "three yes-no questions": (QUESTIONS[:24], QUESTIONS[24:]),
    "one equal row": (X, np.concatenate([X[:1], X[1:] + 1])),
}


@pytest.mark.parametrize("case", GOOD)
def test_equal_rows_of_good_data_pass(case):
    train, test = GOOD[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(test, train).num_clients == 3


def test_clients_that_share_rows_give_a_warning():
    pool = RNG.normal(size=(40, 5))
    tests = RNG.normal(size=(6, 5))
    parts = np.split(np.arange(60), 3)
    # each client draws from the whole pool
    drawn = [RNG.choice(40, 20, replace=False) for _ in parts]
    with pytest.warns(
        UserWarning, match=r"^train_indices: \d+ of 60 .* equal an example of another cl"
    ):
        build(tests, pool[np.concatenate(drawn)], parts, np.split(np.arange(6), 3))
    # an example may be twice at a client: augmented or drawn by chance
    again = pool[RNG.choice(40, 60)]
    assert build(tests, again, parts, np.split(np.arange(6), 3)).num_clients == 3
