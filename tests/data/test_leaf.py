"""Folders in LEAF's layout: users, images stored as multiples of 1/255, and damaged files."""

import json
import re

import numpy as np
import pytest
from clients import examples
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.data import is_ready, leaf, load, names
from fedjax_srp.lab.commands import cli

# few users and classes
pytestmark = pytest.mark.filterwarnings(
    "ignore:natural", "ignore:labels", "ignore:y_test"
)


def write(path, users):
    """Write one file of users with their inputs and labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    content = {
        "users": [*users],
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": entries,
    }
    path.write_text(json.dumps(content))


PIXELS = np.random.default_rng(0).integers(0, 256, (3, 6, 784))
ONE, TWO, TEN = (PIXELS / 255).tolist()
LABELS = [10, 36, 61, 0, 36, 10]


@pytest.fixture
def femnist(tmp_path):
    """Write three writers in two training files, one of whom is in both and one without test images."""
    folder = tmp_path / "femnist"
    first = {"f02": (TWO[:3], LABELS[:3]), "f01": (ONE[:3], LABELS[:3])}
    write(folder / "train" / "all_data_0_keep_0_train_9.json", first)
    second = {"f10": (TEN[3:], LABELS[3:]), "f02": (TWO[3:], LABELS[3:])}
    write(folder / "train" / "all_data_1_keep_0_train_9.json", second)
    tests = {"f01": (ONE[3:], LABELS[3:]), "f02": (TEN[:3], LABELS[:3])}
    write(folder / "test" / "all_data_0_keep_0_test_9.json", tests)
    return folder


def test_writers_are_clients(femnist):
    data = load(femnist)
    assert (data.name, data.num_clients, data.num_classes) == ("femnist", 2, 62)
    assert data.x_train.dtype == np.uint8
    for client, number in enumerate((3, 6)):
        x, y = examples(data, client)
        expected = PIXELS[client, :number].reshape(-1, 28, 28) / 255
        assert_allclose(x, expected, atol=1e-7)
        assert y.tolist() == LABELS[:number]


def test_users_whom_leaf_left_out_have_entries_without_examples(femnist):
    """Those with a single example, in files that its first scripts wrote."""
    expected = leaf.read(femnist)
    for kind in ("train", "test"):
        path = femnist / kind / f"all_data_0_keep_0_{kind}_9.json"
        content = json.loads(path.read_text())
        content["user_data"]["f99"] = {"x": [], "y": []}
        path.write_text(json.dumps(content))
    assert leaf.read(femnist).users_train.tolist() == expected.users_train.tolist()


def test_folders_are_found_by_name_and_in_leafs_data_folder(femnist, tmp_path):
    assert "femnist" in names(tmp_path)
    by_name = load("femnist", data_dir=tmp_path)
    moved = tmp_path / "leaf" / "femnist"
    moved.mkdir(parents=True)
    femnist.rename(moved / "data")
    assert_array_equal(load(moved).x_train, by_name.x_train)
    letters = load(moved, classes=[36, 61], partition="iid", num_clients=1)
    assert sorted(np.asarray(letters.y_train).tolist()) == [0, 0, 0, 0, 1, 1]
    assert not is_ready("mnist", tmp_path)
    moved.rename(tmp_path / "mnist")  # the folder, not the built-in source
    assert is_ready("mnist", tmp_path)
    assert load("mnist", data_dir=tmp_path).num_classes == 62


def test_numbers_are_read_once(femnist, monkeypatch):
    first = leaf.read(femnist)
    with monkeypatch.context() as patch:
        patch.setattr(leaf, "_decode", None)
        assert_array_equal(leaf.read(femnist).x_train, first.x_train)
    (femnist / "train" / "all_data_1_keep_0_train_9.json").unlink()
    assert len(leaf.read(femnist).x_train) == 6


@pytest.mark.parametrize(
    "x",
    [
        [[0.5, -1.0], [2.0, 3.0]],
        [[-1 / 255] + [0.0] * 783],
        [[256 / 255] + [0.0] * 783],
    ],
)
def test_other_numbers_keep_their_values(x, tmp_path):
    for kind in ("train", "test"):
        write(tmp_path / kind / "data.json", {"a": (x, [1] * len(x))})
    found = leaf.read(tmp_path).x_train
    assert found.dtype == np.float32
    assert_allclose(found.reshape(len(x), -1), x, rtol=1e-6)


def test_images_that_are_no_bytes_in_one_file_become_floats(femnist):
    odd = np.linspace(0, 1, 784)
    write(femnist / "test" / "more.json", {"f01": ([odd.tolist()], [3])})
    data = load(femnist)
    assert data.x_train.dtype == np.float32
    pairs = (
        (examples(data, 0, "test")[0][3], odd),
        (examples(data, 0)[0][0], PIXELS[0, 0] / 255),
    )
    for image, expected in pairs:
        assert_allclose(image, expected.reshape(28, 28), rtol=1e-6)


TEXTS = {
    "train": {
        "anna": (["Good day, good people!", "so bad"], ["4", "0"]),
        "ben": (["a good one", "bad, bad, bad"], ["4", "0"]),
    },
    "test": {
        "anna": (["good news", "", "day " * 40], ["4", "0", "4"]),
        "ben": (["BAD?"], ["0"]),
    },
}


def tweet(user, text, kind):
    """Return an input in LEAF's format."""
    split = {"train": "training", "test": "test"}[kind]
    return ["1467", "Mon Apr 06", "NO_QUERY", user, text, split]


def test_tweets_become_tokens(tmp_path):
    """Of two users with Sentiment140's polarity as labels, in strings; plain texts give the same tokens."""
    for kind, users in TEXTS.items():
        write(tmp_path / "plain" / kind / "data.json", users)
        tweets = {}
        for user, (texts, labels) in users.items():
            tweets[user] = ([tweet(user, text, kind) for text in texts], labels)
        write(tmp_path / "sent140" / kind / "data.json", tweets)
    data = load(tmp_path / "sent140", partition="natural")
    assert (data.num_clients, data.num_classes, data.example_shape) == (2, 2, (25,))
    assert (data.x_train.dtype, data.scale) == (np.int32, None)
    plain = leaf.read(tmp_path / "plain").x_train
    assert_array_equal(leaf.read(tmp_path / "sent140").x_train, plain)
    x, y = examples(data, 0)
    # "bad" occurs 4 times, "," and "good" 3 times, and once: ! a day one people so
    assert x[0, :7].tolist() == [4, 7, 3, 4, 9, 5, 0]
    assert examples(data, 1)[0][1, :6].tolist() == [2, 3, 2, 3, 2, 0]
    assert y.tolist() == [1, 0]
    x, y = examples(data, 0, "test")
    assert x[0, :3].tolist() == [4, 1, 0]  # news is unknown: only training texts count
    assert not x[1].any()
    assert x[2].tolist() == [7] * 25
    assert y.tolist() == [1, 0, 1]
    srp.models.LSTM(data.example_shape, data.num_classes).check_fits(data)


def broken(x=((0.5,),), y=(1,), **changes):
    good = {"users": ["a"], "num_samples": [len(x)], "user_data": {"a": {"x": x, "y": y}}}
    return json.dumps(good | changes)


BROKEN = {
    "Unterminated string": broken()[:-9],
    "'utf-8' codec": b"{\xff}",
    "user 'b' is in users and not in user_data": broken(users=["a", "b"]),
    "list indices must be": json.dumps([1, 2]),
    "maximum recursion depth": "[" * 100_000,
    "user 'a' has 1 inputs, 2 labels and num_samples 1": broken(y=[1, 2]),
    "user 'a' has 1 inputs, 1 labels and num_samples 3": broken(num_samples=[3]),
    "the label 0.5 is not an integer": broken(y=[0.5]),
    "expected str instance, int found": broken(["good", 2], [1, 0]),
    "there are no examples": broken(users=[], num_samples=[], user_data={}),
    "user 'a' is in user_data and not in users": broken(users=[], num_samples=[]),
    "inhomogeneous shape": broken([[0.5], [1.0, 2.0]], [1, 2]),
    "the key 'y' occurs twice": broken().replace('"y": [1]', '"y": [1], "y": [2]'),
    "the key 'a\\x00' occurs twice, or contains a NUL": broken(user_data={"a\0": {}}),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_file_is_named(message, femnist):
    content = BROKEN[message]
    if isinstance(content, str):
        content = content.encode()
    (femnist / "train" / "zzz.json").write_bytes(content)
    start = f"name={str(femnist)!r}: train/zzz.json is damaged or is not in LEAF's layout"
    with refused(f"^{re.escape(start)} .*{re.escape(message)}.*; copy or prepare"):
        load(femnist)


def test_the_command_line_names_a_broken_file(femnist, capsys):
    (femnist / "train" / "zzz.json").write_text("{")
    words = ["run", "--method", "srpfl", "--dataset", str(femnist)]
    assert cli.main(words, set_up_cores=False) == 2
    start = f"fedjax-srp: error: dataset={str(femnist)!r}: train/zzz.json "
    assert capsys.readouterr().err.startswith(start)


def test_folders_without_files_are_refused(femnist, tmp_path):
    (tmp_path / "empty").mkdir()
    with refused(r"name=.*empty': has \[\], which is none of the layouts npz, leaf, har"):
        load(tmp_path / "empty")
    for path in (femnist / "test").iterdir():
        path.unlink()
    with refused(r"no .json files in .*femnist/test; give"):
        load(femnist)


@pytest.mark.parametrize(("x", "shape"), [([[0.5, 1.0]], r"\(2,\)"), (["good"], "text")])
def test_shapes_must_agree(x, shape, tmp_path):
    write(tmp_path / "train" / "data.json", {"a": ([[0.5]], [0])})
    write(tmp_path / "test" / "data.json", {"a": (x, [0])})
    with refused(rf"examples have shapes \(1,\) and {shape}; give all the same shape"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("users", "x", "y", "message"),
    [
        (
            ("f0", "f2"),
            [[0.5, 1.0]],
            [0],
            "users_test: no user of .*f2.* split by user, .*-t sample.*holdout_clients",
        ),
        (
            ("hamlet", "hamlet"),
            ["to be or not to b", "o be or not t\u00f3 be"],
            ["e", ","],
            "characters .*\u00f3.*are not among the 80 .*next_tokens",
        ),
        (
            ("7", "7"),
            ["01.JPG", "img/my photo.webp"],
            [1, 0],
            "inputs are names of image files.*no folder raw/img_align_celeba.*put it",
        ),
        (
            ("ann", "ann"),
            [[["how", "do"], ["i"]]],
            [{"target_tokens": [["x"]]}],
            "inputs are lists of .*next_words",
        ),
    ],
)
def test_other_layouts_of_leaf_are_not_damage(users, x, y, message, tmp_path):
    for kind, user in zip(("train", "test"), users, strict=True):
        write(tmp_path / kind / "data.json", {user: (x, y)})
    with refused(message) as caught:
        load(tmp_path)
    assert "damaged" not in str(caught.value)


WORDS = ["the", "cat", "sat", "on", "the", "mat"]
TWEET = tweet("ann", "the cat", "train")


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ([WORDS, WORDS[:5]], ["the cat sat on the mat", "the cat sat on the"]),
        ([TWEET, TWEET[:5]], ["the cat", "the cat"]),
        ([TWEET, WORDS[:2]], [" ".join(TWEET), "the cat"]),
        (["the cat", "sat"], ["the cat", "sat"]),
    ],
)
def test_lists_of_words_are_joined_and_tweets_are_recognized(inputs, texts):
    assert leaf._inputs(inputs).tolist() == texts
