"""Saving a federation and loading it."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clients import examples, rows
from numpy.testing import assert_array_equal
from reference.small import refused

from fedjax_srp.data import from_arrays, holdout, linear_task, load, next_tokens, save


def unequal(dtype, shape=(4, 3), factor=1, **options):
    """Return three clients with 1, 5 and 40 training and 3, 1 and 2 test examples in random order."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 120, (50, *shape)).astype(dtype) * np.asarray(factor, dtype)
    y = rng.integers(0, 4, 50)
    options["train_indices"] = np.split(rng.permutation(46), [1, 6])
    options["test_indices"] = np.split(rng.permutation(6), [3, 4])
    return from_arrays(x, y, x + 100, y, num_classes=6, **options)


def texts(folder):
    """Load two users' tweets in LEAF's layout."""
    for kind, words in {
        "train": ["good day", "bad luck", "good good"],
        "test": ["day", "bad night"],
    }.items():
        entry = {"x": words, "y": [4, 0, 4][: len(words)]}
        content = {"users": ["ann", "bob"], "user_data": {"ann": entry, "bob": entry}}
        (folder / kind).mkdir(parents=True)
        (folder / kind / "all.json").write_text(json.dumps(content))
    return load(folder)


FEDERATIONS = {
    "digits, scaled by 1/16": lambda _: load("digits", 20, sigma=1.0, max_examples=20),
    "one pool": lambda _: holdout(load("digits", 4, sigma=1.0), 0.5),
    "pixels": lambda _: unequal(np.uint8),
    "a scale and an offset a channel": lambda _: unequal(
        np.uint8, scale=[1.0, 0.3, 2], offset=[0, 1, 2]
    ),
    "pixels as they are": lambda _: unequal(np.uint8, scale=1.0),
    "halves": lambda _: unequal(np.float16, factor=1 / 7, offset=-0.1),
    "tokens": lambda _: unequal(np.int32, (25,)),
    "texts": lambda folder: texts(folder / "tweets"),
}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_saved_federation_is_loaded(name, tmp_path):
    data = FEDERATIONS[name](tmp_path)
    save(data, tmp_path / "mnist.npz")  # a name with constants for files without a scale
    loaded = load(tmp_path / "mnist.npz")
    assert loaded.name == "mnist"
    assert loaded.num_clients == data.num_clients
    assert loaded.num_classes == data.num_classes
    assert loaded.x_test.dtype == data.x_test.dtype
    for ours, theirs in ((data, loaded), (data.stored(), loaded.stored())):
        for client in range(data.num_clients):
            for kind in ("train", "test"):
                mine = examples(ours, client, kind)
                for one, other in zip(mine, examples(theirs, client, kind), strict=True):
                    assert_array_equal(one, other, strict=True)
    left = {path.name for path in tmp_path.iterdir()} - {"tweets"}
    assert left == {"mnist.npz"}  # no temporary files


@pytest.fixture
def arrays():
    x = np.random.default_rng(0).integers(0, 120, (40, 2), np.uint8)
    y = np.arange(40) % 4
    return {"x_train": x, "y_train": y, "x_test": 255 - x, "y_test": y}


def test_a_scale_in_a_file_applies_to_every_partition(tmp_path, arrays):
    facts = {"scale": 0.5, "offset": [1.0, 2.0], "num_classes": 9}
    np.savez(tmp_path / "mnist.npz", **arrays, **facts)
    data = load("mnist", 4, classes_per_client=2, data_dir=tmp_path)
    x = arrays["x_train"][rows(data)[1]]
    assert_array_equal(examples(data, 1)[0], x * np.float32(0.5) + [1, 2])
    assert data.num_classes == 9
    assert load("mnist", 4, classes=[0, 2], data_dir=tmp_path).num_classes == 2


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_classes": [4]}, "num_classes=array([4]) must be an integer, at least 1"),
        ({"scale": "1/16"}, "scale=array('1/16', dtype='<U4'): must be finite as"),
        ({"scale": np.array({})}, "damaged, or not an .npz file of plain arrays"),
    ],
)
def test_invalid_facts_in_a_file_are_refused(facts, message, tmp_path, arrays):
    np.savez(tmp_path / "odd.npz", **arrays, **facts)
    with refused(re.escape(message)):
        load(tmp_path / "odd.npz", 4)


def single(dtype=np.float32):
    """Return clients of 1 and 3 examples."""
    x = jnp.ones((6, 2), dtype)
    y = np.zeros(6, int)
    rows = {"train_indices": [[0], [1, 2, 3]], "test_indices": [[4], [5]]}
    return from_arrays(x, y, x, y, **rows)


@pytest.mark.filterwarnings("ignore:validation")
@pytest.mark.parametrize(
    ("make", "file", "message"),
    [
        (single, "mine.csv", "path=.*must end in .npz, and its folder must exist"),
        (single, "nowhere/mine.npz", "must end in .npz, and its folder must exist"),
        (lambda: holdout(single()), "a.npz", "data: client 0 has no test examples"),
        (
            lambda: single(np.uint8).stored(),
            "a.npz",
            "data: inputs are uint8, which load would not read unchanged",
        ),
        (lambda: single(jnp.bfloat16), "a.npz", "data: inputs are bfloat16"),
        (
            lambda: next_tokens([[[1, 2, 3]]], [[[3, 2, 1]]]),
            "a.npz",
            r"data: labels have shape \(1, 2\)",
        ),
        (
            lambda: linear_task(jax.random.key(0), 3, 4, 2),
            "a.npz",
            "must be a FederatedData; give srp.data.load",
        ),
    ],
)
def test_data_that_cannot_be_saved_are_refused(make, file, message, tmp_path):
    with refused(message):
        save(make(), tmp_path / file)
    assert not [*tmp_path.iterdir()]
