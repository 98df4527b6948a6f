"""Folders in LEAF's layout: users, images stored as multiples of 1/255, and damaged files."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.data import is_ready, leaf, load, names
from fedjax_srp.lab.commands import cli

pytestmark = pytest.mark.filterwarnings(
    "ignore:natural", "ignore:labels"
)  # few users and classes


def write(path, users, x, y):
    """Write one file; x and y map users to examples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x[user], "y": y[user]} for user in users}
    path.write_text(
        json.dumps(
            {
                "users": users,
                "num_samples": [len(y[user]) for user in users],
                "user_data": data,
            }
        )
    )


@pytest.fixture
def femnist(tmp_path):
    """Write three writers in two training files, one of whom is in both and one without test images."""
    rng, folder = np.random.default_rng(0), tmp_path / "femnist"
    pixels = {user: rng.integers(0, 256, (6, 784)) for user in ("f01", "f02", "f10")}
    x = {user: (values / 255).tolist() for user, values in pixels.items()}
    y = {user: [10, 36, 61, 0, 36, 10] for user in x}
    half = {user: values[:3] for user, values in x.items()}
    rest = {user: values[3:] for user, values in x.items()}
    tests = {"f01": rest["f01"], "f02": (1 - pixels["f02"][3:] / 255).tolist()}
    labels, other = (
        {user: values[cut] for user, values in y.items()}
        for cut in (slice(3), slice(3, 6))
    )
    write(
        folder / "train" / "all_data_0_keep_0_train_9.json", ["f02", "f01"], half, labels
    )
    write(
        folder / "train" / "all_data_1_keep_0_train_9.json", ["f10", "f02"], rest, other
    )
    write(folder / "test" / "all_data_0_keep_0_test_9.json", ["f01", "f02"], tests, other)
    return folder, pixels


def test_writers_are_clients(femnist):
    folder, pixels = femnist
    data = load(folder)
    assert (data.name, data.num_clients, data.num_classes) == ("femnist", 2, 62)
    assert data.example_shape == (28, 28)
    assert data.x_train.dtype == jnp.uint8
    assert np.asarray(data.train_counts).tolist() == [3, 6]
    one, two = (data.train_client(jnp.int32(i)) for i in range(2))
    np.testing.assert_allclose(
        one.x[:3], pixels["f01"][:3].reshape(-1, 28, 28) / 255, atol=1e-7
    )
    np.testing.assert_allclose(two.x, pixels["f02"].reshape(-1, 28, 28) / 255, atol=1e-7)
    assert two.y.tolist() == [10, 36, 61, 0, 36, 10]


def test_folders_are_found_by_name_and_in_leafs_data_folder(femnist, tmp_path):
    folder, _ = femnist
    assert "femnist" in names(tmp_path)
    by_name = load("femnist", data_dir=tmp_path)
    moved = tmp_path / "leaf" / "femnist"
    moved.mkdir(parents=True)
    folder.rename(moved / "data")
    np.testing.assert_array_equal(load(moved).x_train, by_name.x_train)
    letters = load(moved, classes=[36, 61], partition="iid", num_clients=1)
    assert sorted(np.asarray(letters.y_train).tolist()) == [0, 0, 0, 0, 1, 1]
    assert not is_ready("mnist", tmp_path)
    moved.rename(tmp_path / "mnist")  # the folder, not the built-in source
    assert is_ready("mnist", tmp_path)
    assert load("mnist", data_dir=tmp_path).num_classes == 62


def test_numbers_are_read_once(femnist, monkeypatch):
    folder, _ = femnist
    first = leaf.read(folder)
    with monkeypatch.context() as patch:
        patch.setattr(leaf, "_decode", None)
        np.testing.assert_array_equal(leaf.read(folder).x_train, first.x_train)
    (folder / "train" / "all_data_1_keep_0_train_9.json").unlink()
    assert len(leaf.read(folder).x_train) == 6


def test_other_numbers_keep_their_values(tmp_path):
    x = {"a": [[0.5, -1.0], [2.0, 3.0]], "b": [[1e-3, 7.0]]}
    y = {"a": [0, 1], "b": [1]}
    write(tmp_path / "synthetic" / "train" / "data.json", ["a", "b"], x, y)
    write(
        tmp_path / "synthetic" / "test" / "data.json",
        ["a", "b"],
        {"a": [[0.25, -1.0]], "b": [[0.0, 7.0]]},
        {"a": [0], "b": [1]},
    )
    data = load(tmp_path / "synthetic")
    assert data.scale is None
    np.testing.assert_array_equal(data.x_train, np.array([*x["a"], *x["b"]], np.float32))


def test_images_that_are_no_bytes_in_one_file_become_floats(femnist):
    folder, pixels = femnist
    odd = np.linspace(0, 1, 784)
    write(folder / "test" / "more.json", ["f01"], {"f01": [odd.tolist()]}, {"f01": [3]})
    data = load(folder)
    assert data.x_train.dtype == jnp.float32
    np.testing.assert_allclose(
        data.test_client(jnp.int32(0)).x[3], odd.reshape(28, 28), rtol=1e-6
    )
    np.testing.assert_allclose(
        data.train_client(jnp.int32(0)).x[0],
        pixels["f01"][0].reshape(28, 28) / 255,
        rtol=1e-6,
    )


@pytest.mark.parametrize("odd", [-1 / 255, 256 / 255, 2.0])
def test_multiples_outside_of_bytes_keep_their_values(odd, tmp_path):
    for kind in ("train", "test"):
        write(
            tmp_path / "femnist" / kind / "data.json",
            ["a"],
            {"a": [[odd] + [0.0] * 783]},
            {"a": [1]},
        )
    read = leaf.read(tmp_path / "femnist")
    assert read.x_train.dtype == np.float32
    np.testing.assert_allclose(read.x_train[0, 0, 0], odd, rtol=1e-6)


def tweet(user, text, kind):
    """Return an input in LEAF's format."""
    return [
        "1467",
        "Mon Apr 06",
        "NO_QUERY",
        user,
        text,
        {"train": "training", "test": "test"}[kind],
    ]


@pytest.fixture
def sent140(tmp_path):
    """Write two users with Sentiment140's polarity as labels, in strings."""
    texts = {
        "train": {
            "anna": ["Good day, good people!", "so bad"],
            "ben": ["a good one", "bad, bad, bad"],
        },
        "test": {"anna": ["good news", "", "day " * 40], "ben": ["BAD?"]},
    }
    labels = {
        "train": {"anna": ["4", "0"], "ben": ["4", "0"]},
        "test": {"anna": ["4", "0", "4"], "ben": ["0"]},
    }
    for kind, of in texts.items():
        x = {
            user: [tweet(user, text, kind) for text in lines]
            for user, lines in of.items()
        }
        write(tmp_path / "sent140" / kind / "data.json", ["anna", "ben"], x, labels[kind])
    return tmp_path / "sent140"


def test_tweets_become_tokens(sent140):
    data = load(sent140, partition="natural")
    assert (data.num_clients, data.num_classes, data.example_shape) == (2, 2, (25,))
    assert (data.x_train.dtype, data.scale) == (jnp.int32, None)
    anna, ben = (data.train_client(jnp.int32(i)) for i in range(2))
    # "bad" occurs 4 times, "," and "good" 3 times, and once: ! a day one people so
    assert anna.x[0, :7].tolist() == [4, 7, 3, 4, 9, 5, 0]
    assert ben.x[1, :6].tolist() == [2, 3, 2, 3, 2, 0]
    assert (anna.y.tolist(), ben.y.tolist()) == ([1, 0], [1, 0])
    test = data.test_client(jnp.int32(0))
    assert test.x[0, :3].tolist() == [
        4,
        1,
        0,
    ]  # news is unknown: only training texts count
    assert not np.asarray(test.x[1]).any()
    assert test.x[2].tolist() == [7] * 25
    assert test.y.tolist() == [1, 0, 1]
    srp.models.LSTM(data.example_shape, data.num_classes).check_fits(data)


def test_plain_strings(sent140, tmp_path):
    tokens = leaf.read(sent140).x_train
    for kind in ("train", "test"):
        content = json.loads((sent140 / kind / "data.json").read_text())
        x = {
            user: [example[4] for example in data["x"]]
            for user, data in content["user_data"].items()
        }
        y = {user: data["y"] for user, data in content["user_data"].items()}
        write(tmp_path / "plain" / kind / "data.json", content["users"], x, y)
    np.testing.assert_array_equal(leaf.read(tmp_path / "plain").x_train, tokens)


def broken(**changes):
    good = {
        "users": ["a"],
        "num_samples": [1],
        "user_data": {"a": {"x": [[0.5]], "y": [1]}},
    }
    return json.dumps(good | changes)


BROKEN = {
    "Unterminated string": broken()[:-9],
    "'utf-8' codec": b"{\xff}",
    "KeyError('b')": broken(users=["a", "b"]),
    "KeyError('users')": json.dumps({"x": [1]}),
    "list indices must be": json.dumps([1, 2]),
    "maximum recursion depth": "[" * 100_000,
    "user 'a' has 1 inputs, 2 labels and num_samples 1": broken(
        user_data={"a": {"x": [[0.5]], "y": [1, 2]}}
    ),
    "user 'a' has 1 inputs, 1 labels and num_samples 3": broken(num_samples=[3]),
    "int() argument must be": broken(user_data={"a": {"x": [[0.5]], "y": [None]}}),
    "the label 0.5 is not an integer": broken(
        user_data={"a": {"x": [[0.5]], "y": [0.5]}}
    ),
    "invalid literal for int() with base 10: 'e'": broken(
        user_data={"a": {"x": [[0.5]], "y": ["e"]}}
    ),
    "expected str instance, int found": broken(
        num_samples=[2], user_data={"a": {"x": ["good", 2], "y": [1, 0]}}
    ),
    "inputs are names of image files, e.g. '01.jpg'": broken(
        num_samples=[2], user_data={"a": {"x": ["01.jpg", "02.jpg"], "y": [1, 0]}}
    ),
    "there are no examples": broken(users=[], num_samples=[]),
    "inhomogeneous shape": broken(
        num_samples=[2], user_data={"a": {"x": [[0.5], [1.0, 2.0]], "y": [1, 2]}}
    ),
    "the key 'y' occurs twice": broken().replace('"y": [1]', '"y": [1], "y": [2]'),
    "the key 'a\\x00' occurs twice, or contains a NUL": broken(
        users=["a", "a\0"],
        num_samples=[1, 1],
        user_data={user: {"x": [[0.5]], "y": [1]} for user in ("a", "a\0")},
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_file_is_named(message, femnist, capsys):
    folder, _ = femnist
    content = BROKEN[message]
    (folder / "train" / "zzz.json").write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    start = (
        f"name={str(folder)!r}: train/zzz.json is damaged or is not in LEAF's layout ("
    )
    with refused(f"^{re.escape(start)}.*{re.escape(message)}"):
        load(folder)
    assert (
        cli.main(
            ["run", "--method", "srpfl", "--dataset", str(folder)], set_up_cores=False
        )
        == 2
    )
    assert capsys.readouterr().err.startswith(
        f"fedjax-srp: error: dataset={str(folder)!r}: train/zzz.json "
    )


def test_folders_without_files_are_refused(femnist, tmp_path):
    folder, _ = femnist
    (tmp_path / "empty").mkdir()
    with refused(
        r"no .json files in .*empty/train; give a folder with LEAF's train/\*.json"
    ):
        load(tmp_path / "empty")
    for path in (folder / "test").iterdir():
        path.unlink()
    with refused(r"no .json files in .*femnist/test; give"):
        load(folder)


def test_shapes_must_agree(tmp_path):
    for kind, x in (("train", [[0.5]]), ("test", [[0.5, 1.0]])):
        write(tmp_path / kind / "data.json", ["a"], {"a": x}, {"a": [0]})
    with refused(
        re.escape("examples have shapes (1,) and (2,); give all the same shape")
    ):
        load(tmp_path)
    write(tmp_path / "test" / "data.json", ["a"], {"a": ["good"]}, {"a": [0]})
    with refused(
        re.escape("examples have shapes (1,) and text; give all the same shape")
    ):
        load(tmp_path)
