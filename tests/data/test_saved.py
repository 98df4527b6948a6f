"""Saving a federation and loading it."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import (
    FederatedData,
    from_arrays,
    holdout,
    linear_task,
    load,
    next_tokens,
    save,
)

COUNTS, TESTS = (1, 5, 40), (3, 1, 2)


def unequal(x, **options):
    """Return three clients with 1, 5 and 40 training and 3, 1 and 2 test examples in random order."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, len(x))
    deal = lambda counts: np.split(
        rng.permutation(len(x))[: sum(counts)], np.cumsum(counts)[:-1]
    )
    indices = {"train_indices": deal(COUNTS), "test_indices": deal(TESTS)}
    return from_arrays(x, y, x + 100, y, **indices, num_classes=6, **options)


def numbers(dtype, shape=(50, 4, 3)):
    return np.random.default_rng(0).integers(0, 120, shape).astype(dtype)


def texts(folder):
    """Load two users' tweets in LEAF's layout."""
    for kind, words in {
        "train": ["good day", "bad luck", "good good"],
        "test": ["day", "bad night"],
    }.items():
        of_user = {
            user: {"x": words, "y": [4, 0, 4][: len(words)]} for user in ("anna", "bert")
        }
        (folder / kind).mkdir(parents=True)
        content = {
            "users": [*of_user],
            "num_samples": [len(words)] * 2,
            "user_data": of_user,
        }
        (folder / kind / "all.json").write_text(json.dumps(content))
    return load(folder)


FEDERATIONS = {
    "digits, scaled by 1/16": lambda folder: load(
        "digits", num_clients=20, classes_per_client=3, max_examples=20
    ),
    "log-normal sizes": lambda folder: load("digits", num_clients=10, sigma=1.0),
    "a test set of validation": lambda folder: load(
        "digits", num_clients=10, alpha=0.5, validation=0.2
    ),
    "one pool": lambda folder: holdout(load("digits", num_clients=4, sigma=1.0), 0.5),
    "pixels": lambda folder: unequal(numbers(np.uint8)),
    "a scale and an offset a channel": lambda folder: unequal(
        numbers(np.uint8), scale=[1.0, 0.3, 2], offset=[0, 1, 2]
    ),
    "pixels as they are": lambda folder: unequal(numbers(np.uint8), scale=1.0),
    "floats": lambda folder: unequal(numbers(np.float32) / 7),
    "halves": lambda folder: unequal(numbers(np.float16) / np.float16(7), offset=-0.1),
    "tokens": lambda folder: unequal(numbers(np.int32, (50, 25))),
    "texts": lambda folder: texts(folder / "tweets"),
}


def assert_same(one: FederatedData, other: FederatedData):
    assert (one.num_clients, one.num_classes) == (other.num_clients, other.num_classes)
    assert one.x_train.dtype == other.x_train.dtype
    assert one.x_test.dtype == other.x_test.dtype
    for federations in ((one, other), (one.stored(), other.stored())):
        for kind in ("train_client", "test_client"):
            clients = jnp.arange(one.num_clients, dtype=jnp.int32)
            ours, theirs = (
                jax.vmap(getattr(data, kind))(clients) for data in federations
            )
            np.testing.assert_array_equal(ours.count, theirs.count)
            assert ours.x.dtype == theirs.x.dtype
            is_real = np.arange(ours.y.shape[1]) < np.asarray(ours.count)[:, None]
            for mine, their in ((ours.x, theirs.x), (ours.y, theirs.y)):
                np.testing.assert_array_equal(mine[is_real], their[is_real])


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_saved_federation_is_loaded(name, tmp_path):
    data = FEDERATIONS[name](tmp_path)
    save(data, tmp_path / "mnist.npz")  # a name with constants for files without a scale
    loaded = load(tmp_path / "mnist.npz")
    assert_same(data, loaded)
    assert loaded.name == "mnist"
    assert {path.name for path in tmp_path.iterdir()} - {"tweets"} == {
        "mnist.npz"
    }  # no temporary files


def test_a_scale_in_a_file_applies_to_every_partition(tmp_path):
    x, y = numbers(np.uint8, (40, 2)), np.arange(40) % 4
    arrays = {"x_train": x, "y_train": y, "x_test": 255 - x, "y_test": y}
    np.savez(
        tmp_path / "mnist.npz", **arrays, scale=0.5, offset=[1.0, 2.0], num_classes=9
    )
    data = load("mnist", 4, classes_per_client=2, data_dir=tmp_path)
    rows = np.asarray(data.train_indices)[1]
    np.testing.assert_array_equal(
        data.train_client(jnp.int32(1)).x, x[rows] * np.float32(0.5) + np.float32([1, 2])
    )
    assert data.num_classes == 9
    assert load("mnist", 4, classes=[0, 2], data_dir=tmp_path).num_classes == 2
    np.savez(tmp_path / "half.npz", **arrays, offset=1.0)
    with np.errstate(all="raise"):
        assert load("half", 4, data_dir=tmp_path).scale == np.float32(1 / 255)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_classes": 4.0}, "num_classes=4.0 must be an integer"),
        ({"num_classes": [4]}, "num_classes=array([4]) must be an integer, at least 1"),
        (
            {"scale": "1/16"},
            "scale=array('1/16', dtype='<U4'): must be finite as float32, not 0, and broadcast over examples",
        ),
        ({"scale": np.array({})}, "damaged, or not an .npz file of plain arrays"),
    ],
)
def test_invalid_scale_offset_or_num_classes_in_a_file_are_refused(
    facts, message, tmp_path
):
    x, y = numbers(np.uint8, (40, 2)), np.arange(40) % 4
    np.savez(
        tmp_path / "odd.npz", x_train=x, y_train=y, x_test=255 - x, y_test=y, **facts
    )
    with refused(re.escape(message)):
        load(tmp_path / "odd.npz", 4)


def single(dtype=np.float32):
    """Return clients of 1 and 3 examples."""
    x = jnp.ones((6, 2), dtype)
    return from_arrays(
        x,
        np.zeros(6, int),
        x,
        np.zeros(6, int),
        train_indices=[[0], [1, 2, 3]],
        test_indices=[[4], [5]],
    )


@pytest.mark.filterwarnings("ignore:validation")
@pytest.mark.parametrize(
    ("make", "file", "message"),
    [
        (single, "mine.csv", "must end in .npz, and its folder must exist"),
        (single, "nowhere/mine.npz", "must end in .npz, and its folder must exist"),
        (
            lambda: holdout(single()),
            "mine.npz",
            "data: client 0 has no test examples, and load leaves such clients out",
        ),
        (
            lambda: single(np.uint8).stored(),
            "mine.npz",
            "data: inputs are uint8, which load would not read unchanged",
        ),
        (
            lambda: single(jnp.bfloat16),
            "mine.npz",
            "data: inputs are bfloat16, which load would not read",
        ),
        (
            lambda: next_tokens([[[1, 2, 3]]], [[[3, 2, 1]]]),
            "mine.npz",
            "data: labels have shape (1, 2), and load reads one class number per example",
        ),
        (
            lambda: linear_task(jax.random.key(0), 3, 4, 2),
            "mine.npz",
            "must be a FederatedData; give srp.data.load(",
        ),
    ],
)
def test_data_that_cannot_be_saved_are_refused(make, file, message, tmp_path):
    with refused(re.escape(message)):
        save(make(), tmp_path / file)
    assert not [*tmp_path.iterdir()]
