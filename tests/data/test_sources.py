"""Federated data from the name of a data set or a file."""

import json
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from clients import examples, rows
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import refused

from fedjax_srp.data import SOURCES, load, names, partition
from fedjax_srp.lab.commands import cli

# users that are left out, see test_partition
pytestmark = pytest.mark.filterwarnings("ignore:natural")

RNG = np.random.default_rng(0)
ARRAYS = {
    "x_train": RNG.integers(0, 256, (300, 4, 4), dtype=np.uint8),
    "y_train": np.arange(300, dtype=np.uint8) % 6,
    "x_test": RNG.integers(0, 256, (120, 4, 4), dtype=np.uint8),
    "y_test": np.arange(120, dtype=np.uint8) % 6,
}
USERS = {"writer_train": np.arange(300) // 30, "writer_test": np.arange(120) // 10}
FILES = {
    "mnist": ARRAYS,  # a name with normalisation constants
    "femnist": ARRAYS,
    "emnist/digits": ARRAYS,
    "people": ARRAYS | USERS | {"names": np.arange(3)},
    "half": {"x_train": ARRAYS["x_train"], "other": np.arange(3)},
    "odd": ARRAYS | {"user_train": np.arange(3), "user_test": np.arange(120)},
    "writers": ARRAYS | {"writer_train": USERS["writer_train"]},
    "objects": ARRAYS | {"y_train": np.array([{}] * 300)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of files of images, some of them damaged."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "emnist").mkdir()
    for name, arrays in FILES.items():
        np.savez(folder / f"{name}.npz", **arrays)
    (folder / "text.npz").write_text("no archive")
    return folder


def test_digits():
    data = load("digits", num_clients=20, classes_per_client=5)
    assert (data.name, data.num_classes, data.example_shape) == ("digits", 10, (8, 8))
    train = np.bincount(data.y_train)
    test = np.bincount(data.y_test)
    assert sum(train + test) == 1797
    assert_allclose(test / (train + test), 0.3, atol=0.01)
    x, _ = examples(data, 0)
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert [*map(len, rows(data, "test"))] == [data.test_count[0]] * 20


def test_the_seed_changes_clients_and_not_the_split():
    one, again, other = (load("digits", 10, alpha=0.5, seed=seed) for seed in (0, 0, 1))
    assert_array_equal(one.x_test, other.x_test)
    assert rows(one) == rows(again) != rows(other)


def test_max_examples():
    options = {"num_clients": 10, "classes_per_client": 5, "seed": 3}
    whole = load("digits", **options)
    capped = load("digits", **options, max_examples=40)
    train = list(map(np.array, rows(whole)))
    kept = partition.cap_examples(train, np.asarray(whole.y_train), 40, seed=3)
    assert_array_equal(rows(capped), kept)
    assert rows(capped, "test") == rows(whole, "test")
    # iid may lose classes
    assert load("digits", 10, max_examples=3).train_counts.max() == 3


@pytest.mark.parametrize(
    ("words", "kind", "function"),
    [
        ("classes_per_client=3", "classes", partition.by_classes),
        (
            "classes_per_client=3 reserved_classes=2 reserved_fraction=0.5",
            "classes",
            partition.by_classes,
        ),
        (
            "classes_per_client=3 examples_per_class=20",
            "consecutive",
            partition.consecutive,
        ),
        ("shards_per_client=2", "shards", partition.shards),
        ("alpha=0.3 min_examples=30", "dirichlet", partition.dirichlet),
        ("sigma=1.0", "lognormal", partition.lognormal_sizes),
        (
            "classes_per_client=3 sigma=0.5 min_examples=20",
            "lognormal_classes",
            partition.lognormal_classes,
        ),
        ("", "iid", partition.iid),
    ],
)
def test_the_partition_follows_from_the_arguments(words, kind, function):
    arguments = {}
    for word in words.split():
        name, value = word.split("=")
        arguments[name] = json.loads(value)
    raw = SOURCES["digits"](Path())
    expected = function(raw.y_train, raw.y_test, 10, seed=3, **arguments)
    for named in ({}, {"partition": kind}):
        data = load("digits", 10, seed=3, **arguments, **named)
        assert rows(data) == [own.tolist() for own in expected.train]
        assert rows(data, "test") == [own.tolist() for own in expected.test]


def test_data_sets_with_users_are_partitioned_by_user(folder):
    data = load(str(folder / "people.npz"))
    assert data.name == "people"
    # two of twelve have no training images
    assert rows(data) == np.arange(300).reshape(10, 30).tolist()
    assert load("people", 4, data_dir=folder).num_clients == 4
    divided = load("people", 4, partition="iid", data_dir=folder)
    assert divided.train_indices.shape == (4, 75)


def test_classes_are_kept_and_renumbered(folder):
    everything = load("people", data_dir=folder)
    data = load("people", data_dir=folder, classes=[4, 1])
    assert (data.num_classes, data.num_clients) == (2, 10)
    for client in (0, 9):
        for kind in ("train", "test"):
            x, y = examples(everything, client, kind)
            x_kept, y_kept = examples(data, client, kind)
            is_kept = np.isin(y, [4, 1])
            assert_array_equal(x_kept, x[is_kept])
            assert_array_equal(y_kept, y[is_kept] == 1)


def test_classes_on_the_command_line():
    words = "run --method srpfl --dataset digits --num-clients 4 --classes 0 1 2"
    _, arguments = cli._parse(words.split())
    assert arguments["classes"] == (0, 1, 2)


MNIST = (0.1307, 0.3081)
CIFAR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR100 = ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("mnist", MNIST),
        ("emnist/digits", MNIST),
        ("femnist", (0, 1)),
        ("cifar10", CIFAR),
        ("cifar100", CIFAR100),
    ],
)
def test_normalisation_by_exact_name(name, constants, tmp_path):
    shape = (8, 2, 2, 3) if "cifar" in name else (8, 2, 2)
    x = RNG.integers(0, 256, shape, dtype=np.uint8)
    y = np.arange(8) % 2

    (tmp_path / "emnist").mkdir()
    file = tmp_path / f"{name}.npz"
    np.savez(file, x_train=x, y_train=y, x_test=255 - x, y_test=y)
    data = load(name, 2, data_dir=tmp_path)
    assert data.name == name
    mean, std = constants
    expected = (x[rows(data)[1]] / 255 - mean) / std
    assert_allclose(examples(data, 1)[0], expected, rtol=0, atol=1e-6)
    np.savez(file, x_train=x / 255, y_train=y, x_test=-x / 255, y_test=y)
    assert load(name, 2, data_dir=tmp_path).scale is None  # floats are left alone


def test_the_data_folder_is_an_argument_or_that_of_tensorflow_datasets(
    folder, monkeypatch
):
    assert names() == sorted(SOURCES)
    (folder / ".AbC.writing").mkdir()  # of a writer that was killed
    np.savez(folder / ".AbC.writing" / "mine.npz")
    np.savez(folder / "._people.npz")  # as other systems write beside a file
    assert set(names(folder)) == {*SOURCES, *FILES, "text"}
    monkeypatch.setenv("HOME", str(folder.parent))
    for place in (str(folder), f"~/{folder.name}"):
        monkeypatch.setenv("TFDS_DATA_DIR", place)
        assert names() == names(place) == names(folder)
        for data in (
            load("people"),
            load("people", data_dir=place),
            load(f"{place}/people.npz"),
        ):
            assert (data.name, data.num_clients) == ("people", 10)


def test_an_unreadable_folder_is_ignored(tmp_path, monkeypatch):
    is_dir = Path.is_dir

    def guarded(path):
        if "secret" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", guarded)
    (tmp_path / "secret").mkdir()
    assert load("digits", 10, data_dir=tmp_path).name == "digits"
    with refused("name='secret': no such data set"):
        load("secret", data_dir=tmp_path)


def test_a_damaged_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "toy.npz", **ARRAYS)
    content = bytearray((tmp_path / "toy.npz").read_bytes())
    # a block of unknown type, behind the header
    content[30 + sum(struct.unpack_from("<HH", content, 26))] = 0xFF
    (tmp_path / "toy.npz").write_bytes(content)
    with refused("damaged, or not an .npz file .*; copy it again, or") as caught:
        load("toy", 2, data_dir=tmp_path)
    assert isinstance(caught.value.__cause__, zlib.error)


def test_one_array_under_the_name_of_several(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.zeros((6, 2)))
    with refused(r"it is an .npy file of one array of shape \(6, 2\).*np.savez"):
        load(tmp_path / "x.npz", 2)


ERRORS = [
    ({"name": "digit"}, "name='digit': no such data set (did you mean digits?); use one"),
    ({"name": "nowhere.npz"}, "name='nowhere.npz': no such file"),
    ({"name": "/pepole.npz"}, "/pepole.npz': no such file (did you mean people.npz?)"),
    (
        {"name": "/half.npz"},
        "/half.npz': lacks y_train, x_test, y_test; found x_train, other; rename them",
    ),
    ({"name": "/odd.npz"}, "users_train: has shape (3,), y_train (300,); give one user"),
    ({"name": "/objects.npz"}, "/objects.npz': damaged, or not an .npz file of plain"),
    ({"name": "/text.npz"}, "/text.npz': damaged, or not an .npz file of plain arrays"),
    ({"name": "/writers.npz"}, "/writers.npz': lacks writer_test; found x_train"),
    (
        {"partition": "dirichelt"},
        "partition='dirichelt' is unknown (did you mean dirichlet?); choose from classes",
    ),
    (
        {"partition": "natural"},
        "partition='natural': the data set has no users; give another partition",
    ),
    ({"num_clients": None}, "num_clients=None: partition 'iid' needs it; give it, or"),
    (
        {"partition": "iid", "classes_per_client": 5},
        "classes_per_client: is for partition 'classes' or 'consecutive' or",
    ),
    (
        {"classes_per_client": 2, "alpha": 1.0},
        "alpha: is for partition 'dirichlet', but the partition is 'classes'; leave one",
    ),
    (
        {"examples_per_class": 5},
        "classes_per_client=None: partition 'consecutive' needs it",
    ),
    ({"classes": []}, "classes: no label is listed; give some of 0, 1, 2, 3, 4, 5, 6"),
    ({"classes": [0.5]}, "classes[0]=0.5 must be an integer"),
    ({"classes": [3, 1, 3]}, "classes: 3 is listed twice, or has no training examples"),
    ({"classes": [3, 11]}, "classes: 11 is listed twice, or has no training examples"),
    (
        {"classes_per_client": 5, "max_examples": 4},
        "max_examples=4: removes all training examples of a class that client 0 is tested",
    ),
    (
        {"classes_per_client": 5, "reserved_fraction": 0.5},
        "reserved_fraction=0.5: no classes are reserved for these clients; give",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "message"), ERRORS, ids=[message for _, message in ERRORS]
)
def test_errors(arguments, message, folder):
    arguments = {"name": "digits", "num_clients": 10} | arguments
    start = "^"
    if arguments["name"].startswith("/"):
        arguments["name"] = f"{folder}{arguments['name']}"
        start = f"^(name='{folder})?"
    with refused(start + re.escape(message)):
        load(**arguments)
