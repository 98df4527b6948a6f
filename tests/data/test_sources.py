"""Federated data from the name of a data set or a file."""

import json
import re
import struct
import zlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import SOURCES, arrays, load, names, partition
from fedjax_srp.lab.commands import cli

pytestmark = pytest.mark.filterwarnings(
    "ignore:natural"
)  # users that are left out, see test_partition


@pytest.fixture
def folder(tmp_path):
    """Write files of images: under names with normalisation constants, with users, and damaged ones."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (300, 4, 4), dtype=np.uint8),
        "y_train": np.arange(300, dtype=np.uint8) % 6,
        "x_test": rng.integers(0, 256, (120, 4, 4), dtype=np.uint8),
        "y_test": np.arange(120, dtype=np.uint8) % 6,
    }
    np.savez(tmp_path / "mnist.npz", **arrays)
    np.savez(tmp_path / "femnist.npz", **arrays)
    users = {
        "writer_train": np.arange(300) // 30,
        "writer_test": np.arange(120) // 10,
        "names": np.arange(3),
    }
    np.savez(tmp_path / "people.npz", **arrays, **users)
    np.savez(tmp_path / "half.npz", x_train=arrays["x_train"], other=np.arange(3))
    np.savez(
        tmp_path / "odd.npz", **arrays, user_train=np.arange(3), user_test=np.arange(120)
    )
    np.savez(tmp_path / "writers.npz", **arrays, writer_train=users["writer_train"])
    np.savez(tmp_path / "objects.npz", **arrays | {"y_train": np.array([{}] * 300)})
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "emnist").mkdir()
    np.savez(tmp_path / "emnist" / "digits.npz", **arrays)
    return tmp_path


def test_digits():
    data = load("digits", num_clients=20, classes_per_client=5)
    assert (data.name, data.num_clients, data.num_classes, data.example_shape) == (
        "digits",
        20,
        10,
        (8, 8),
    )
    assert len(data.y_train) + len(data.y_test) == 1797
    assert 0.29 < len(data.y_test) / 1797 < 0.31
    share = np.bincount(data.y_test) / (
        np.bincount(data.y_train) + np.bincount(data.y_test)
    )
    np.testing.assert_allclose(share, 0.3, atol=0.01)
    x = data.train_client(jnp.int32(0)).x
    assert data.x_train.dtype == jnp.uint8
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert len(set(data.test_count)) == 1


def test_the_seed_changes_clients_and_not_the_split():
    one, other = (load("digits", 10, classes_per_client=3, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(one.x_test, other.x_test)
    assert not np.array_equal(one.train_indices, other.train_indices)
    np.testing.assert_array_equal(
        one.train_indices, load("digits", 10, classes_per_client=3).train_indices
    )


def test_max_examples():
    whole, capped = (
        load("digits", 10, classes_per_client=5, max_examples=most, seed=3)
        for most in (None, 40)
    )
    kept = partition.cap_examples(
        list(np.asarray(whole.train_indices)), np.asarray(whole.y_train), 40, seed=3
    )
    np.testing.assert_array_equal(capped.train_indices, kept)
    np.testing.assert_array_equal(capped.test_indices, whole.test_indices)
    assert (
        max(np.asarray(load("digits", 10, alpha=0.3, max_examples=50).train_counts)) == 50
    )
    assert (
        max(np.asarray(load("digits", 10, max_examples=3).train_counts)) == 3
    )  # iid may lose classes


ARGUMENTS = {  # arguments that select a partition -> its name and function
    "classes_per_client=3": ("classes", partition.by_classes),
    "classes_per_client=3 reserved_classes=2": ("classes", partition.by_classes),
    "classes_per_client=3 reserved_classes=2 reserved_fraction=0.5": (
        "classes",
        partition.by_classes,
    ),
    "classes_per_client=3 examples_per_class=20": ("consecutive", partition.consecutive),
    "shards_per_client=2": ("shards", partition.shards),
    "alpha=0.3": ("dirichlet", partition.dirichlet),
    "alpha=0.3 min_examples=30": ("dirichlet", partition.dirichlet),
    "sigma=1.0": ("lognormal", partition.lognormal_sizes),
    "": ("iid", partition.iid),
}


@pytest.mark.parametrize("words", ARGUMENTS)
def test_the_partition_follows_from_the_arguments(words):
    kind, function = ARGUMENTS[words]
    arguments = {
        name: json.loads(value)
        for name, value in (word.split("=") for word in words.split())
    }
    raw = SOURCES["digits"](Path())
    expected = function(raw.y_train, raw.y_test, 10, seed=3, **arguments)
    for named in ({}, {"partition": kind}):
        data = load("digits", 10, seed=3, **arguments, **named)
        for indices, counts, rows in (
            (data.train_indices, data.train_counts, expected.train),
            (data.test_indices, data.test_counts, expected.test),
        ):
            np.testing.assert_array_equal(indices, arrays.pad(rows)[0])
            np.testing.assert_array_equal(counts, [len(of_client) for of_client in rows])


def test_data_sets_with_users_are_partitioned_by_user(folder):
    data = load(str(folder / "people.npz"))
    assert (data.name, data.num_clients) == (
        "people",
        10,
    )  # two of twelve have no training images
    assert all(
        len(set(rows // 30)) == 1 for rows in np.asarray(data.train_indices)
    )  # 30 images each
    assert load("people", 4, data_dir=folder).num_clients == 4
    assert load("people", 4, partition="iid", data_dir=folder).train_indices.shape == (
        4,
        75,
    )


def test_classes_are_kept_and_renumbered(folder):
    everything, data = (
        load("people", data_dir=folder),
        load("people", data_dir=folder, classes=[4, 1]),
    )
    assert (data.num_classes, data.num_clients) == (2, 10)
    for client in range(10):
        for of in ("train_client", "test_client"):
            before, after = (
                getattr(d, of)(jnp.int32(client)) for d in (everything, data)
            )
            before_y, after_y = (
                np.asarray(before.y)[: before.count],
                np.asarray(after.y)[: after.count],
            )
            kept = np.isin(before_y, [4, 1])
            assert after_y.tolist() == [{4: 0, 1: 1}[label] for label in before_y[kept]]
            np.testing.assert_array_equal(
                after.x[: after.count], np.asarray(before.x)[: before.count][kept]
            )
    all_in_order = load("digits", 5, classes=range(10))
    assert all_in_order.options["classes"] == [*range(10)]
    np.testing.assert_array_equal(all_in_order.y_train, load("digits", 5).y_train)


def test_classes_on_the_command_line():
    words = "run --method srpfl --dataset digits --num-clients 4 --classes 0 1 2 --reserved-classes 1"
    _, arguments = cli._parse(words.split())
    assert arguments["classes"] == (0, 1, 2)
    assert arguments["reserved_classes"] == 1


def test_normalisation_by_exact_name(folder):
    pixels = np.load(folder / "mnist.npz")["x_train"]
    mnist = (0.1307, 0.3081)
    for name, (mean, std) in {
        "mnist": mnist,
        "emnist/digits": mnist,
        "femnist": (0, 1),
        "people": (0, 1),
    }.items():
        data = load(name, 4, classes_per_client=2, data_dir=folder)
        assert data.name == name
        train = data.train_client(jnp.int32(1))
        rows = np.asarray(data.train_indices)[1]
        np.testing.assert_allclose(
            train.x, (pixels[rows] / 255 - mean) / std, rtol=0, atol=1e-6
        )
    by_path = load(folder / "mnist.npz", 4, classes_per_client=2)
    by_name = load("mnist", 4, classes_per_client=2, data_dir=folder)
    np.testing.assert_array_equal(by_path.scale, by_name.scale)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar10", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("cifar100", (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    ],
)
def test_normalisation_per_channel(tmp_path, name, mean, std):
    x, y = (
        np.random.default_rng(0).integers(0, 256, (8, 2, 2, 3), dtype=np.uint8),
        np.arange(8) % 2,
    )
    np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=255 - x, y_test=y)
    data = load(name, 2, data_dir=tmp_path)
    rows = np.asarray(data.train_indices)[0]
    np.testing.assert_allclose(
        data.train_client(jnp.int32(0)).x, (x[rows] / 255 - mean) / std, atol=1e-6
    )


def test_floats_are_not_normalised(tmp_path):
    x, y = np.random.default_rng(0).random((8, 2), np.float32), np.arange(8) % 2
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=-x, y_test=y)
    assert load("mnist", 2, data_dir=tmp_path).scale is None


def test_the_data_folder_is_an_argument_or_that_of_tensorflow_datasets(
    folder, monkeypatch
):
    assert names() == sorted(SOURCES)
    (folder / ".AbC.writing").mkdir()  # of a writer that was killed
    np.savez(folder / ".AbC.writing" / "mine.npz")
    np.savez(folder / "._people.npz")  # as other systems write beside a file
    files = {
        "femnist",
        "half",
        "objects",
        "odd",
        "people",
        "text",
        "writers",
    }  # others have names of SOURCES
    assert set(names(folder)) == {*SOURCES, *files}
    monkeypatch.setenv("HOME", str(folder.parent))
    for place in (str(folder), f"~/{folder.name}"):
        monkeypatch.setenv("TFDS_DATA_DIR", place)
        assert names() == names(place) == names(folder)
        assert (
            load("people").num_clients == load("people", data_dir=place).num_clients == 10
        )
        assert load(f"{place}/people.npz").name == "people"


def test_an_unreadable_folder_is_ignored(folder, monkeypatch):
    is_dir = Path.is_dir

    def guarded(path):
        if "secret" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", guarded)
    (folder / "secret").mkdir()
    assert load("digits", 10, data_dir=folder).name == "digits"
    with refused("name='secret': no such data set"):
        load("secret", data_dir=folder)


def test_a_damaged_archive_is_refused(tmp_path):
    x, y = np.arange(4000.0).reshape(500, 8), np.arange(500) % 2
    np.savez_compressed(tmp_path / "toy.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    content = bytearray((tmp_path / "toy.npz").read_bytes())
    content[30 + sum(struct.unpack_from("<HH", content, 26))] = (
        0xFF  # a block of unknown type, behind the header
    )
    (tmp_path / "toy.npz").write_bytes(content)
    with refused(
        r"toy.npz': damaged, or not an .npz file .*; copy it again, or"
    ) as caught:
        load("toy", 2, data_dir=tmp_path)
    assert isinstance(caught.value.__cause__, zlib.error)


ERRORS = {
    "name='digit': no such data set (did you mean digits?); use one of cifar10": {
        "name": "digit"
    },
    "name='nowhere.npz': no such file": {"name": "nowhere.npz"},
    "name='{}/pepole.npz': no such file (did you mean people.npz?)": {
        "name": "/pepole.npz"
    },
    "name='{}/half.npz': lacks y_train, x_test, y_test; found x_train": {
        "name": "/half.npz"
    },
    "users_train: has shape (3,), y_train (300,); give one user": {"name": "/odd.npz"},
    "name='{}/objects.npz': damaged, or not an .npz file of plain arrays": {
        "name": "/objects.npz"
    },
    "name='{}/text.npz': damaged, or not an .npz file of plain arrays": {
        "name": "/text.npz"
    },
    "name='{}/writers.npz': lacks writer_test; found x_train": {"name": "/writers.npz"},
    "partition='dirichelt' is unknown (did you mean dirichlet?); choose from classes": {
        "partition": "dirichelt"
    },
    "partition='natural': the data set has no users; give another partition": {
        "partition": "natural"
    },
    "num_clients=None: partition 'iid' needs it; give it, or another partition": {
        "num_clients": None
    },
    "alpha=None: partition 'dirichlet' needs it": {"partition": "dirichlet"},
    "alpha: is for partition 'dirichlet', but the partition is 'iid'; leave one": {
        "partition": "iid",
        "alpha": 1.0,
    },
    "alpha: is for partition 'dirichlet', but the partition is 'classes'": {
        "classes_per_client": 2,
        "alpha": 1.0,
    },
    "classes_per_client: is for partition 'classes' or 'consecutive', but the partition is 'iid'": {
        "partition": "iid",
        "classes_per_client": 5,
    },
    "classes_per_client=None: partition 'consecutive' needs it": {
        "examples_per_class": 5
    },
    "classes_per_client=None: partition 'classes' needs it": {"reserved_fraction": 0.5},
    "classes: no label is listed; give some of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, each once": {
        "classes": []
    },
    "classes[0]=0.5 must be an integer": {"classes": [0.5]},
    "classes: 3 is listed twice, or has no training examples; give some of 0, 1": {
        "classes": [3, 1, 3]
    },
    "classes: 11 is listed twice, or has no training examples; give some of 0, 1": {
        "classes": [3, 11]
    },
    "classes_per_client=3: only 2 classes": {"classes": [3, 4], "classes_per_client": 3},
    "max_examples=4: removes all training examples of a class that client 0 is tested on; use 5 or more": {
        "classes_per_client": 5,
        "max_examples": 4,
    },
    "max_examples=0 must be at least 1": {"max_examples": 0},
    "reserved_fraction=0.5: no classes are reserved for these clients; give reserved_classes too": {
        "classes_per_client": 5,
        "reserved_fraction": 0.5,
    },
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message, folder):
    arguments = {"name": "digits", "num_clients": 10} | ERRORS[message]
    if arguments["name"].startswith("/"):
        arguments["name"] = f"{folder}{arguments['name']}"
    with refused("^" + re.escape(message.replace("{}", str(folder)))):
        load(**arguments)
