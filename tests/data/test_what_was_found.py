"""Refusals of data say what was found, and what to do."""

import json

import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import from_arrays, leaf, load, partition

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 2
ROWS = {"train_indices": [[0, 1]], "test_indices": [[2, 3]]}


def write_leaf(folder, users, x, y):
    """Write one file for training and one for tests; users, x and y have an entry for each of the two."""
    for kind, names in zip(("train", "test"), users, strict=True):
        (folder / kind).mkdir(parents=True)
        data = {user: {"x": x, "y": y} for user in names}
        content = {
            "users": names,
            "num_samples": [len(x)] * len(names),
            "user_data": data,
        }
        (folder / kind / "all.json").write_text(json.dumps(content))
    return folder


def test_the_keys_of_a_file(tmp_path):
    np.savez(
        tmp_path / "blood.npz",
        train_images=X,
        train_labels=Y,
        test_images=X,
        test_labels=Y,
    )
    with refused(
        "lacks x_train, y_train, x_test, y_test; found train_images, train_labels, test_images.*rename"
    ):
        load(tmp_path / "blood.npz", 2)


def test_one_array_under_the_name_of_several(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, X)
    with refused(r"it is an .npy file of one array of shape \(6, 2\).*np.savez"):
        load(tmp_path / "x.npz", 2)


ARRAYS = {
    "a dict of clients": (
        {"x_train": {"ann": X, "bob": X}},
        r"x_train: is a dict of \['ann', 'bob'\]; put .* end to end",
    ),
    "one dict of rows": (
        {"train_indices": {"ann": [0]}},
        r"train_indices: only this is a dict of clients; give dicts",
    ),
    "two people": (
        {"train_indices": {"ann": [0]}, "test_indices": {"bob": [1]}},
        r"test_indices: \['ann', 'bob'\] are in one of .*give both the same",
    ),
    "nan": (
        {"x_train": np.where(X == 5, np.nan, X)},
        r"x_train\[2, 1\]: nan is not finite as .*; repair the .* leave it",
    ),
    "ragged rows": (
        {"x_train": [[1.0, 2.0]] * 3 + [[1.0]]},
        r"x_train: .*row 3 has length 1 and row 0 length 2: pad",
    ),
    "a row without numbers": (
        {"x_train": [[1.0, 2.0], 3.0]},
        r"row 1 has a single value and row 0 length 2",
    ),
    "names": (
        {"client_names": ["ann", "bob"]},
        r"client_names: has 2 names for 1 clients; give one",
    ),
    "numbers as names": (
        {"client_names": [3]},
        r"client_names: 3 is not a text; give list\(map\(str",
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays(case):
    change, message = ARRAYS[case]
    given = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, **ROWS} | change
    with refused(message) as caught:
        from_arrays(**given)
    assert case != "nan" or "x64" not in str(caught.value)


def test_dicts_of_rows_are_matched_by_name():
    rows = {"bob": [0], "ann": [1, 2]}
    data = from_arrays(
        X, Y, X, Y, train_indices=rows, test_indices={"ann": [3], "bob": [4, 5]}
    )
    assert data.client_names == ("bob", "ann")
    assert np.asarray(data.train_counts).tolist() == [1, 2]
    assert np.asarray(data.test_counts).tolist() == [2, 1]


def test_users_as_bytes_and_as_text():
    with refused("users_test: are bytes, users_train text, .*np.char.decode"):
        partition.natural(np.array(["ann", "bob"]), np.array([b"ann", b"bob"]))


def test_users_that_were_split(tmp_path):
    folder = write_leaf(
        tmp_path / "split", (["f0", "f1"], ["f2"]), [[0.5, 1.0], [2.0, 0.25]], [0, 1]
    )
    with refused(
        "users_test: no user of .*f2.* split by user, .*-t user; .*-t sample.*holdout_clients"
    ):
        load(folder)


def test_characters_and_token_lists_are_not_damage(tmp_path):
    play = write_leaf(
        tmp_path / "plays",
        (["hamlet"], ["hamlet"]),
        ["to be or not to b", "o be or not to be"],
        ["e", ","],
    )
    forum = write_leaf(
        tmp_path / "forum",
        (["ann"], ["ann"]),
        [[["how", "do"], ["i"]]],
        [{"target_tokens": [["x"]]}],
    )
    for folder, message in (
        (play, "labels are characters.*next_tokens"),
        (forum, "inputs are lists of .*next_words"),
    ):
        with refused(message) as caught:
            load(folder)
        assert "damaged" not in str(caught.value)


WORDS = ["the", "cat", "sat", "on", "the", "mat"]
TWEET = ["1467", "Mon Apr 06", "NO_QUERY", "ann", "the cat", "training"]


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (
            [WORDS, WORDS[:5], WORDS[:2]],
            ["the cat sat on the mat", "the cat sat on the", "the cat"],
        ),
        ([TWEET, TWEET[:5]], ["the cat", "the cat"]),
        ([TWEET, WORDS[:2]], [" ".join(TWEET), "the cat"]),
        (["the cat", "sat"], ["the cat", "sat"]),
    ],
)
def test_lists_of_words_are_joined_and_tweets_are_recognized(given, texts):
    assert leaf._inputs(given).tolist() == texts
