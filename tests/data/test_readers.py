"""Layouts of files as people have them, round-tripped against arrays computed by hand, and their hostile variants."""

import functools
import gzip
import io
import json
import pickle
import re
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from clients import examples
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import refused
from test_leaf import write

import fedjax_srp as srp
from fedjax_srp.data import LAYOUTS, layouts, load, names, next_words, pickles, save


def check_clients(data, expected, kind="train"):
    """Compare each client's rows, in any order, with `expected`: name -> inputs and labels."""
    assert data.client_names == tuple(expected)
    for client, (x, y) in enumerate(expected.values()):
        found_x, found_y = examples(data, client, kind)
        assert_allclose(found_x, x, rtol=1e-6)
        assert found_y.tolist() == list(y)


# ---- UCI HAR


def write_har(folder, activities=(1, 2, 6)):
    """Write four rows each of subjects 1 and 3 for training, and four of subject 2 for tests."""
    names = [
        "1 WALKING",
        "2 WALKING_UPSTAIRS",
        "3 WALKING_DOWNSTAIRS",
        "4 SITTING",
        "5 STANDING",
        "6 LAYING",
    ]
    rows = {"train": [1, 3] * 4, "test": [2] * 4}
    folder.mkdir(parents=True)
    (folder / "activity_labels.txt").write_text("\n".join(names) + "\n")
    for kind, subjects in rows.items():
        (folder / kind).mkdir()
        labels = np.resize(activities, len(subjects))
        x = [
            f"  {subject + 0.25:.7e} -{i + 1}.0e-01\n"
            for i, subject in enumerate(subjects)
        ]
        (folder / kind / f"X_{kind}.txt").write_text("".join(x))
        (folder / kind / f"y_{kind}.txt").write_text("\n".join(map(str, labels)) + "\n")
        text = "\n".join(map(str, subjects)) + "\n"
        (folder / kind / f"subject_{kind}.txt").write_text(text)
    return folder


def test_uci_har(tmp_path):
    """Each subject, of training and of tests, is a client with a test row of its own."""
    write_har(tmp_path / "UCI HAR Dataset")
    data = load(tmp_path)  # the folder in which the archive was opened
    assert data.client_names == ("1", "2", "3")
    assert data.class_names == ("WALKING", "WALKING_UPSTAIRS", "LAYING")
    assert data.num_classes == 3
    assert data.train_counts.tolist() == [3, 3, 3]
    assert data.test_counts.tolist() == [1, 1, 1]
    rows = {1: (0, 2, 4, 6), 2: (0, 1, 2, 3), 3: (1, 3, 5, 7)}
    for client, (subject, own) in enumerate(rows.items()):
        x = []
        y = []
        for kind in ("train", "test"):
            x_of_kind, y_of_kind = examples(data, client, kind)
            x.extend(x_of_kind.tolist())
            y.extend(y_of_kind.tolist())
        expected = [([subject + 0.25, -(i + 1) / 10], i % 3) for i in own]
        found = sorted(zip(x, y, strict=True), key=lambda row: -row[0][1])
        for (x_row, label), (x_expected, label_expected) in zip(
            found, expected, strict=True
        ):
            assert_allclose(x_row, x_expected, rtol=1e-6)
            assert label == label_expected
    half = load(tmp_path, test_fraction=0.5, seed=3)
    assert half.test_counts.tolist() == [2, 2, 2]
    assert_array_equal(load(tmp_path, seed=4).x_test, data.x_test)


def test_a_partition_of_data_without_tests_counts_all_their_rows(tmp_path):
    """Rows 0..7 are those of train, 8..11 those of test, wherever the partition puts them."""
    folder = write_har(tmp_path / "har")
    first = np.array([1, 3] * 4 + [2] * 4) + 0.25
    second = -np.array([*range(1, 9), *range(1, 5)]) / 10
    x = np.stack([first, second], axis=1)
    for suffix in ("json", "pkl"):
        parts = tmp_path / f"parts.{suffix}"
        content = {"a": {"train": [11, 0], "test": [7]}, "b": {"train": [2], "test": [9]}}
        parts.write_text(json.dumps(content))
        if suffix == "pkl":
            parts.write_bytes(pickle.dumps({"data_indices": [*content.values()]}))
        data = load(folder, partition=parts)
        assert data.options["partition"] == str(parts)
        for client, own in enumerate(content.values()):
            for kind, rows in own.items():
                assert_allclose(examples(data, client, kind)[0], x[rows], rtol=1e-6)
        with refused("test_fraction=0.5: partition=.* lists test rows; leave test_frac"):
            load(folder, partition=parts, test_fraction=0.5)
    for content, problem in {
        '{"a": [0, 2, 2], "b": [1, 3]}': "train row 2 is listed twice for client 'a'",
        '{"a": [0, 2, 4], "b": [1, 4]}': "train row 4 is listed for clients 'a' and 'b'",
    }.items():
        twice = tmp_path / "twice.json"
        twice.write_text(content)
        with refused(f"partition=.*twice.json': {problem}; give each row to one client"):
            load(folder, partition=twice)
    lists = tmp_path / "lists.json"
    lists.write_text('{"a": [0, 2, 4, 11], "b": [1, 3, 10, 7]}')
    half = load(folder, partition=lists, test_fraction=0.5)
    for client, own in enumerate(([0, 2, 4, 11], [1, 3, 10, 7])):
        found = [examples(half, client, kind)[0] for kind in ("train", "test")]
        assert [len(part) for part in found] == [2, 2]
        assert_allclose(
            sorted(np.concatenate(found).tolist()), sorted(x[own].tolist()), rtol=1e-6
        )


def write_signals(folder):
    """Write the nine signals of three steps: row i of signal s has s + i / 8 at each step."""
    write_har(folder)
    for kind, num_rows in (("train", 8), ("test", 4)):
        place = folder / kind / "Inertial Signals"
        place.mkdir()
        for number, name in enumerate(layouts.har.SIGNALS):
            lines = [f"  {number + i / 8:.7e}" * 3 for i in range(num_rows)]
            (place / f"{name}_{kind}.txt").write_text("\n".join(lines))
    return folder / "train" / "Inertial Signals"


def test_the_signals_of_uci_har(tmp_path):
    place = write_signals(tmp_path / "har")
    data = load(place)
    assert data.example_shape == (3, 9)
    rows = {"1": (0, 2, 4, 6), "2": (0, 1, 2, 3), "3": (1, 3, 5, 7)}
    for client, (name, own) in enumerate(rows.items()):
        assert data.client_names[client] == name
        x = [*examples(data, client)[0], *examples(data, client, "test")[0]]
        x.sort(key=lambda row: row[0, 0])
        expected = np.arange(9) + np.array(own)[:, None, None] / 8
        assert_allclose(x, np.broadcast_to(expected, (4, 3, 9)), rtol=1e-6)
    (place / "body_acc_y_train.txt").write_text("1 2 3\n")
    with refused("train/Inertial Signals.* is damaged .*same shape"):
        load(place)
    (place / "body_acc_y_train.txt").unlink()
    with refused("body_acc_y_train.txt.* is missing; copy it again"):
        load(place)


HAR_FILES = {
    "train/X_train.txt": ("1.25 0.5\n1.25\n", r"X_train.txt is damaged"),
    "train/y_train.txt": ("1\n2\n", r"X_train.txt .* 8 rows, y_train.txt 2 "),
    "test/subject_test.txt": ("", r"subject_test.txt: has no rows"),
    "test/X_test.txt": ("1.0\n" * 4, r"X_test.txt has 1 columns, X_train.txt 2;"),
    "train/subject_train.txt": ("1\nx\n", r"subject_train.txt is damaged"),
    "activity_labels.txt": (
        "1 WALKING\n",
        r"activity_labels.txt is damaged .*\(KeyError\(2\)",
    ),
    "activity_labels.txt, one twice": (
        "1 WALKING\n2 B\n2 C\n6 D\n",
        r"activity_labels.txt: names class 2 twice",
    ),
    "train/y_train.txt, of two columns": (
        "1 2\n" * 8,
        "y_train.txt: has 2 columns in place of one",
    ),
    "train/X_train.txt, with remarks": ("1 2 # 3\n" * 8, "X_train.txt is damaged"),
}


@pytest.mark.parametrize("case", HAR_FILES)
def test_wrong_files_of_uci_har(case, tmp_path):
    folder = write_har(tmp_path / "har")
    content, message = HAR_FILES[case]
    file = case.partition(",")[0]
    (folder / file).write_text(content)
    with refused(message):
        load(folder)
    (folder / file).unlink()
    if file.startswith(("train/X", "train/y", "test")):
        with refused(rf"{file} is missing; copy it again"):
            load(folder)


def test_a_cell_of_uci_har_that_is_nan(tmp_path):
    folder = write_har(tmp_path / "har")
    path = folder / "train" / "X_train.txt"
    path.write_text(path.read_text().replace("1.2500000e+00", "nan", 1))
    with refused(r"x_\w+\[\d, 0\]: nan is not finite .*; repair the example"):
        load(folder)


# ---- IDX


def idx(array, code=8):
    """Return an array in IDX format."""
    head = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


IMAGES = np.arange(10 * 8 * 8).reshape(10, 8, 8).astype(np.uint8)
CLOTHES = np.array([1, 2, 3, 1, 2, 3, 1, 2, 3, 1], np.uint8)


def write_idx(folder, packed=True, prefix=""):
    folder.mkdir(parents=True)
    for split, rows in (("train", slice(6)), ("t10k", slice(6, 10))):
        files = {
            f"{prefix}{split}-images-idx3-ubyte": idx(IMAGES[rows]),
            f"{prefix}{split}-labels-idx1-ubyte": idx(CLOTHES[rows]),
        }
        for name, content in files.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_idx(packed, tmp_path):
    """Labels 1..3, as in EMNIST's letters, are classes 0..2; torchvision's folder raw is found."""
    write_idx(tmp_path / "FashionMNIST" / "raw", packed)
    data = load(tmp_path / "FashionMNIST", 2, partition="iid")
    assert (data.name, data.class_names) == ("FashionMNIST", ("1", "2", "3"))
    assert data.x_train.dtype == np.uint8
    assert_array_equal(data.x_train, IMAGES[:6])
    assert_array_equal(data.y_test, CLOTHES[6:] - 1)
    assert "FashionMNIST" in names(tmp_path)
    named = load("FashionMNIST", 2, data_dir=tmp_path)
    assert_array_equal(named.x_test, IMAGES[6:])


def test_files_of_idx_beside_their_archives(tmp_path):
    folder = write_idx(tmp_path / "mine")
    content = gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    assert_array_equal(load(folder, 2).x_train, IMAGES[:6])


@pytest.mark.parametrize("code", [9, 11, 12, 13, 14])
def test_types_of_idx(code):
    dtype = {9: "i1", 11: "i2", 12: "i4", 13: "f4", 14: "f8"}[code]
    array = np.array([[-1, 2], [3, -4]], dtype)
    found = layouts.idx.decode(idx(array, code))
    assert_array_equal(found, array)
    assert found.dtype == np.dtype(dtype)


def test_wrong_files_of_idx(tmp_path):
    folder = write_idx(tmp_path / "mine")
    images = folder / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    for content in (whole[:-9], gzip.compress(gzip.decompress(whole)[:-1]), b"PK", b""):
        images.write_bytes(content)
        with refused(r"mine': train-images-idx3-ubyte.gz is damaged .*; copy or write"):
            load(folder, 2)
    with refused(r"^(?!.*damaged.*damaged).*train-images-idx3-ubyte.gz is damaged"):
        load(folder, 2)
    images.write_bytes(gzip.compress(idx(IMAGES[:5])))
    with refused(
        r"train-images-idx3-ubyte.gz has 5 images, and labels have shape \(6,\)"
    ):
        load(folder, 2)
    images.unlink()
    with refused("has no train-images-idx3-ubyte; copy all four files"):
        load(folder, 2)
    for path in write_idx(tmp_path / "other", prefix="emnist-letters-").iterdir():
        path.rename(folder / path.name)
    write_idx(tmp_path / "third", prefix="emnist-digits-")
    for path in (tmp_path / "third").iterdir():
        path.rename(folder / path.name)
    with refused(r"has several sets, emnist-digits-t10k.*; give a folder with one"):
        load(folder, 2)


@pytest.fixture
def small_memory(monkeypatch):
    """Let this machine have a megabyte."""
    monkeypatch.setattr("fedjax_srp.parts.files.machine_memory", lambda: 1 << 20)


def test_files_that_unpack_to_more_than_the_memory(small_memory, tmp_path):
    """Zeros are packed into a thousandth: what is unpacked is bounded before it is there."""
    zeros = np.zeros((2, 1024, 1024), np.uint8)
    folder = write_idx(tmp_path / "mine")
    packed = gzip.compress(idx(zeros))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(packed)
    with refused("train-images-idx3-ubyte.gz is damaged .*2097152 bytes are too many"):
        load(folder, 2)
    np.savez_compressed(tmp_path / "a.npz", x_train=zeros)
    with refused(r"a.npz': damaged, .*bytes are too many to read"):
        load(tmp_path / "a.npz")
    folder = write_pfllib(tmp_path / "pfllib")
    np.savez_compressed(folder / "train" / "2.npz", data=zeros)
    with refused(r"train/2.npz is damaged .*bytes are too many to read"):
        load(folder)


def test_an_archive_with_two_entries_of_one_name(tmp_path):
    np.savez(tmp_path / "a.npz", **medmnist())
    warned = pytest.warns(UserWarning, match="Duplicate name")
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive, warned:
        archive.writestr("train_images.npy", b"")
    with refused("a.npz': damaged, .*has 2 entries 'train_images.npy'"):
        load(tmp_path / "a.npz")


def test_a_missing_file_of_labels_is_named_as_its_images(tmp_path):
    for packed, end in ((True, r"ubyte\.gz"), (False, "ubyte")):
        folder = write_idx(tmp_path / end[:5] / str(packed), packed)
        next(folder.glob("train-labels*")).unlink()
        with refused(
            rf"^(?!.*damaged)name=.*: train-labels-idx1-{end} is missing; copy it"
        ):
            load(folder, 2)


# ---- MedMNIST


def medmnist(labels=None, **changes):
    """Return the entries of a file of MedMNIST, of six, two and four images."""
    labels = np.array([0, 1] * 6, np.uint8)[:, None] if labels is None else labels
    x = np.arange(12 * 8 * 8 * 3).reshape(12, 8, 8, 3).astype(np.uint8)
    parts = {"train": slice(6), "val": slice(6, 8), "test": slice(8, 12)}
    entries = {}
    for kind, rows in parts.items():
        entries[f"{kind}_images"] = x[rows]
        entries[f"{kind}_labels"] = labels[rows]
    return entries | changes


def test_medmnist(tmp_path):
    np.savez(tmp_path / "pathmnist.npz", **medmnist())
    data = load(tmp_path / "pathmnist.npz", 2)
    assert (data.name, data.num_classes, data.class_names) == ("pathmnist", 2, ("0", "1"))
    assert_array_equal(data.x_train, medmnist()["train_images"])
    assert data.y_test.tolist() == [0, 1, 0, 1]


def test_several_labels_of_medmnist_are_refused(tmp_path):
    labels = np.tile([[1, 0, 1], [0, 0, 0]], (6, 1)).astype(np.uint8)
    np.savez(tmp_path / "chestmnist.npz", **medmnist(labels))
    with refused(
        r"chestmnist.npz': y_train\[0\]: \[1, 0, 1\] is not one-hot; give one label"
    ):
        load(tmp_path / "chestmnist.npz", 2)


# ---- labels of any kind, in files of arrays

LABELS = {
    "one-hot": (np.eye(3)[[0, 2, 1, 0, 2, 1]], ("0", "1", "2")),
    "flags": (np.eye(3, dtype=bool)[[0, 2, 1, 0, 2, 1]], ("0", "1", "2")),
    "from 1": ([1, 3, 2, 1, 3, 2], ("1", "2", "3")),
    "signs": ([-1, 5, 3, -1, 5, 3], ("-1", "3", "5")),
    "column": ([[0], [2], [1], [0], [2], [1]], ("0", "1", "2")),
    "text": (["b", "é ü", "c", "b", "é ü", "c"], ("b", "c", "é ü")),
    "bytes": ([b"a", b"c", b"b", b"a", b"c", b"b"], ("a", "b", "c")),
    "numbers in text": (["2", "10", "9", "2", "10", "9"], ("2", "9", "10")),
    "floats": ([0.0, 2.0, 1.0, 0.0, 2.0, 1.0], ("0", "1", "2")),
    "large": ([0, 2**40, 7, 0, 2**40, 7], ("0", "7", str(2**40))),
}
INPUTS = np.arange(12.0).reshape(6, 2)


def write_arrays(path, y, y_test=None, **entries):
    y_test = y if y_test is None else y_test
    np.savez(
        path,
        x_train=INPUTS,
        y_train=y,
        x_test=INPUTS[::-1] + 0.5,
        y_test=y_test,
        **entries,
    )
    return path


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_numbered_and_kept_as_class_names(kind, tmp_path):
    labels, class_names = LABELS[kind]
    file = write_arrays(tmp_path / "mine.npz", np.array(labels))
    data = load(file, 1)
    assert (data.class_names, data.num_classes) == (class_names, 3)
    assert data.y_train.tolist() == [0, 2, 1, 0, 2, 1]
    save(data, tmp_path / "again.npz")
    again = load(tmp_path / "again.npz")
    assert (again.class_names, again.y_train.tolist()) == (
        class_names,
        data.y_train.tolist(),
    )
    kept = load(file, 1, classes=[2, 0])
    assert kept.class_names == (class_names[2], class_names[0])


def test_class_numbers_stay_what_they_are(tmp_path):
    data = load(write_arrays(tmp_path / "mine.npz", [0, 1, 2, 0, 1, 2]), 1)
    assert data.class_names is None
    with pytest.warns(UserWarning, match="labels: 2 of 5 classes have examples"):
        gaps = load(write_arrays(tmp_path / "gaps.npz", [0, 4, 0, 4, 0, 4]), 1)
    assert (gaps.num_classes, gaps.class_names) == (5, None)
    known = write_arrays(tmp_path / "known.npz", [1, 2, 1, 2, 1, 2], num_classes=9)
    assert load(known, 1).y_train.tolist() == [1, 2, 1, 2, 1, 2]
    column = write_arrays(tmp_path / "column.npz", [[1], [2]] * 3, num_classes=4)
    assert load(column, 1).class_names == ("0", "1", "2", "3")
    named = write_arrays(tmp_path / "named.npz", ["a", "b"] * 3, num_classes=4)
    with refused(
        "named.npz': num_classes is 4, but there are 2 labels, .*; leave num_classes"
    ):
        load(named, 1)


WRONG_LABELS = {
    r"y_train\[1\]: the label nan is missing; leave the row out": [0.0, np.nan] * 3,
    r"y_train\[1\]: the label 0.5 is not a class; give integers or texts": [0.0, 0.5] * 3,
    r"y_train\[0\]: the label 0.5 is not a class": [[0.5, 0.5]] * 6,
    r"y_train: labels have shape \(6, 1, 2\)": np.zeros((6, 1, 2), int),
}


@pytest.mark.parametrize("message", WRONG_LABELS)
def test_labels_that_are_no_classes(message, tmp_path):
    file = write_arrays(tmp_path / "mine.npz", np.array(WRONG_LABELS[message]))
    with refused(rf"mine.npz': ({message})"):
        load(file, 1)


def test_labels_of_two_kinds(tmp_path):
    file = write_arrays(tmp_path / "mine.npz", [0, 1] * 3, ["a", "b"] * 3)
    with refused(r"y_test: labels are numbers in one of training and test and text"):
        load(file, 1)
    file = write_arrays(tmp_path / "wide.npz", np.eye(6)[:, :6], np.eye(7)[:6])
    with refused(r"y_test: one-hot rows have 6 entries in y_train and 7 in y_test; give"):
        load(file, 1)


def test_too_few_names_of_classes(tmp_path):
    labels = [0, 1, 2] * 2
    file = write_arrays(tmp_path / "mine.npz", labels, class_names=["a", "b"])
    for arguments in ({}, {"classes": [0, 2]}):
        with refused("class_names: has 2 names, and y_train the label 2; give a name"):
            load(file, 1, **arguments)
    for wrong in ("abc", [["a", "b"]] * 3, [1, 2, 3]):
        file = write_arrays(tmp_path / "mine.npz", labels, class_names=wrong)
        with refused("class_names is .*; give a list of texts, one for each class"):
            load(file, 1)
    file = write_arrays(tmp_path / "test.npz", [0, 1] * 3, labels, class_names=["a", "b"])
    with refused("class_names: has 2 names, and y_test the label 2; give a name"):
        load(file, 1)


def test_a_missing_user_is_no_client(tmp_path):
    users = {"user_train": [1.0, np.nan, 2.0] * 2, "user_test": [1.0] * 6}
    file = write_arrays(tmp_path / "mine.npz", [0, 1] * 3, **users)
    with refused(r"users_train\[1\]: the user is missing; leave the row out"):
        load(file)


def test_labels_that_only_tests_have(tmp_path):
    file = write_arrays(tmp_path / "mine.npz", ["a", "b"] * 3, ["a", "c"] * 3)
    message = (
        r"y_test: 3 of 6 test examples are of classes .*\(\['c'\]\).*; leave them out"
    )
    with pytest.warns(UserWarning, match=message):
        assert load(file, 1).class_names == ("a", "b", "c")


# ---- PFLlib

FEDERATION = {
    "train": {
        "0": (np.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8) / 7, [3, 1]),
        "2": (np.arange(1 * 3 * 8 * 8).reshape(1, 3, 8, 8) / 5, [1]),
        "10": (np.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8) / 3, [0, 1]),
    },
    "test": {
        "0": (np.arange(1 * 3 * 8 * 8).reshape(1, 3, 8, 8) / 2, [3]),
        "2": (np.arange(1 * 3 * 8 * 8).reshape(1, 3, 8, 8) / 11, [1]),
        "10": (np.arange(1 * 3 * 8 * 8).reshape(1, 3, 8, 8) / 13, [1]),
    },
}


def write_pfllib(folder, federation=FEDERATION, num_classes=None):
    """Write a folder as PFLlib's dataset_utils.save_file does."""
    for kind, clients in federation.items():
        (folder / kind).mkdir(parents=True)
        for name, (x, y) in clients.items():
            with (folder / kind / f"{name}.npz").open("wb") as file:
                columns = {"x": np.asarray(x), "y": np.asarray(y)}
                np.savez_compressed(file, data=columns)
    if num_classes is not None:
        (folder / "config.json").write_text(json.dumps({"num_classes": num_classes}))
    return folder


def with_channels_last(clients, labels):
    return {
        name: (np.moveaxis(x, 1, -1), [labels[label] for label in y])
        for name, (x, y) in clients.items()
    }


def test_pfllib(tmp_path):
    """Clients are in the order of their numbers, channels at the end, and gaps between labels closed."""
    data = load(write_pfllib(tmp_path / "cifar"))
    assert (data.example_shape, data.class_names) == ((8, 8, 3), ("0", "1", "3"))
    for kind, clients in FEDERATION.items():
        check_clients(data, with_channels_last(clients, {0: 0, 1: 1, 3: 2}), kind)


def test_pfllib_with_its_configuration(tmp_path):
    data = load(write_pfllib(tmp_path / "cifar", num_classes=10))
    assert (data.num_classes, data.class_names) == (10, None)
    check_clients(data, with_channels_last(FEDERATION["train"], range(10)))


def test_texts_of_pfllib(tmp_path):
    """A text is a list of tokens and its length, in an array of objects."""
    pairs = np.empty((2, 2), object)
    pairs[0] = [[5, 7, 0], 2]
    pairs[1] = [[6, 1, 2], 3]
    clients = {"0": (pairs, np.array([0, 1]))}
    other = np.empty((1, 2), object)
    other[0] = [[9, 9, 8], 3]
    federation = {"train": clients, "test": {"0": (other, np.array([0]))}}
    data = load(write_pfllib(tmp_path / "news", federation))
    assert data.x_train.tolist() == [[5, 7, 0], [6, 1, 2]]
    assert data.x_train.dtype == np.int32


def test_signals_of_pfllib_are_moved_once(tmp_path):
    """PFLlib's HAR, (9 channels, 1, steps): no second guess from the shape (1, steps, 9)."""
    x = np.arange(2 * 9 * 16).reshape(2, 9, 1, 16) / 7
    federation = {kind: {"0": (x + i, [0, 1])} for i, kind in enumerate(FEDERATION)}
    folder = write_pfllib(tmp_path / "har", federation)
    with pytest.warns(UserWarning, match="look like images .*np.moveaxis.* if they are"):
        data = load(folder)
    assert_allclose(data.x_train, np.moveaxis(x, 1, -1), rtol=1e-6)


class Harmful:
    """Values that a stranger's pickle may hold."""

    def __reduce__(self):
        return print, ("run!",)


def test_a_pickle_is_not_run(tmp_path, capsys):
    folder = write_pfllib(tmp_path / "mine")
    with (folder / "train" / "2.npz").open("wb") as file:
        np.savez_compressed(file, data={"x": Harmful(), "y": [1]})
    with refused(r"train/2.npz is damaged .*asks for builtins.print, which is not run"):
        load(folder)
    assert capsys.readouterr().out == ""


def as_objects(entries):
    """Return an array of objects with these entries, also of lists of one length."""
    array = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        array[i] = entry
    return array


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_are_what_they_were(protocol):
    values = {
        "a": [1, 2.5, "é", None, True, (3, b"x")],
        7: np.arange(6, dtype=">i2").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.float32(1.5),
        "texts": np.array(["a", "bc"]),
        "objects": np.array([[1, 2], [3, 4, 5], None], object),
        "lists of one length": as_objects([[1], [2]]),
        "empty": np.zeros((0, 4)),
    }
    found = pickles.load(io.BytesIO(pickle.dumps(values, protocol)))
    assert list(found) == list(values)
    for key in (7, "fortran", "texts", "empty"):
        assert_array_equal(found[key], values[key])
        assert found[key].dtype == values[key].dtype
    assert (found["a"], found["scalar"]) == (values["a"], 1.5)
    for key in ("objects", "lists of one length"):
        assert found[key].tolist() == values[key].tolist()


HOSTILE_PICKLES = {
    "a class": pickle.dumps(types.SimpleNamespace),
    "a changed function": b"cnumpy.core.multiarray\nscalar\n}S'x'\nI1\nsb.",
    "an object in a dtype": b"cnumpy\ndtype\n(S'V8'\ntR.",
    "a reference": b"Pabc\n.",
    "a reference to an object": b"K\x01Q.",
    "a memo of gigabytes": b"]r" + (200_000_000).to_bytes(4, "little") + b".",
    "a memo of gigabytes, in text": b"]p200000000\n.",
    "lists in lists": pickle.dumps(functools.reduce(lambda a, _: [a, a], range(40), [])),
    "cut": pickle.dumps(np.arange(9))[:-20],
    "a wrong shape": pickle.dumps(np.arange(9)).replace(b"K\t\x85", b"K\x08\x85"),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE_PICKLES)
def test_hostile_pickles_are_refused(kind, tmp_path):
    file = tmp_path / "partition.pkl"
    file.write_bytes(HOSTILE_PICKLES[kind])
    with refused(
        r"partition=.*partition.pkl' is damaged or is not in a layout of srp.data.read_partition.* \(.*\); copy"
    ):
        load("digits", partition=str(file))


def test_wrong_folders_of_pfllib(tmp_path):
    folder = write_pfllib(tmp_path / "mine")
    path = folder / "test" / "2.npz"
    whole = path.read_bytes()
    # flags of the archive's directory: encrypted; compressed by an unknown method
    for place, value in ((8, 1), (10, 99)):
        changed = bytearray(whole)
        changed[whole.index(b"PK\1\2") + place] = value
        path.write_bytes(changed)
        with refused(r"mine': test/2.npz is damaged or is not in PFLlib's layout"):
            load(folder)
    path.write_bytes(whole[:-30])
    with refused(r"mine': test/2.npz is damaged or is not in PFLlib's layout"):
        load(folder)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", b"text")
    with refused(r"mine': test/2.npz is damaged or is not in PFLlib's layout"):
        load(folder)
    np.savez(path, x=np.zeros((1, 8, 8, 3)))
    with refused(r"mine': test/2.npz: has x; give an entry data, a dict of x and y"):
        load(folder)
    np.savez(path, data={"x": np.zeros((1, 3, 9, 9)), "y": np.zeros(1, int)})
    with refused(
        r"client '2' has test examples of shape \(9, 9, 3\) float64, and client '0'"
    ):
        load(folder)
    np.savez(path, data={"x": np.zeros((1, 3, 8, 8)), "y": np.zeros(2, int)})
    with refused(
        r"client '2' has inputs of shape .* and labels of shape \(2,\); give one"
    ):
        load(folder)
    path.write_bytes(whole)
    (folder / "config.json").write_text('{"num_classes": "ten"}')
    with refused("config.json: num_classes is 'ten'; give the number of classes"):
        load(folder)
    (folder / "config.json").write_text('{"num_classes": 2}')
    with refused("num_classes=2: there is a label 3"):
        load(folder)


def test_empty_clients_are_said(tmp_path):
    federation = {
        kind: clients | {"7": (np.zeros((0, 3, 8, 8)), np.zeros(0, int))}
        for kind, clients in FEDERATION.items()
    }
    folder = write_pfllib(tmp_path / "mine", federation)
    with pytest.warns(UserWarning, match=r"clients \['7'\] have no") as caught:
        assert load(folder).client_names == ("0", "2", "10")
    assert len(caught) == 2
    for path in (folder / "test").iterdir():
        path.unlink()
    with (
        pytest.warns(UserWarning, match="have no train examples"),
        refused("test: no client has test examples; give one or more some rows"),
    ):
        load(folder)


BESIDE = {
    r"client '2' has train examples of shape \(8, 8, 3\) uint8, and client '0' of": (
        np.zeros((1, 3, 8, 8), np.uint8),
        [1],
    ),
    r"client '2' has labels of shape \(1, 4\) int64, and client '0' of \(2,\) int64": (
        np.zeros((1, 3, 8, 8)),
        [[0, 1, 0, 0]],
    ),
    r"client '2' has labels of shape \(1,\) <U1, and client '0' of": (
        np.zeros((1, 3, 8, 8)),
        ["a"],
    ),
    r"train/2.npz is damaged .*inhomogeneous": ([[1.0], [1.0, 2.0]], [0, 1]),
    r"train/2.npz: x is no array of numbers": (np.array([None, None]), [0, 1]),
}


@pytest.mark.parametrize("message", BESIDE)
def test_clients_that_differ_in_kind(message, tmp_path):
    """Bytes beside floats, say, would be read on two scales."""
    folder = write_pfllib(tmp_path / "mine")
    x, y = BESIDE[message]
    np.savez(
        folder / "train" / "2.npz", data=np.array({"x": x, "y": np.array(y)}, object)
    )
    with refused(message):
        load(folder)


def test_numbers_and_names_of_clients(tmp_path):
    """Where some clients have numbers and some names, all are names; clients of one split are said."""
    folder = write_pfllib(tmp_path / "mine")
    (folder / "test" / "2.npz").rename(folder / "test" / "Zoë 李.npz")
    with pytest.warns(
        UserWarning, match="natural: 2 of 4 users are left out: 1 have no test"
    ):
        data = load(folder)
    assert data.client_names == ("0", "10")


# ---- folders of images


def write_images(folder, clients, mode="L", suffix=".png", size=(8, 9)):
    """Write an image of one colour for each number; return the images by client, classes in order."""
    from PIL import Image

    expected = {}
    for client, classes in clients.items():
        for label, numbers in classes.items():
            place = folder / client / label
            place.mkdir(parents=True)
            for number in numbers:
                shape = size if mode == "L" else (*size, 3)
                image = np.full(shape, number, np.uint8)
                image[0, 0] = 255 - number
                Image.fromarray(image).save(place / f"{number}{suffix}")
                expected.setdefault(client, []).append(image / 255)
    return expected


PEOPLE = {
    "train": {
        "ann": {"cat": [1, 2], "dog": [3]},
        "Zoë 李": {"dog": [4, 5]},
    },
    "test": {"ann": {"cat": [6]}, "Zoë 李": {"dog": [7]}},
}


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_folders_of_images(mode, tmp_path):
    folder = tmp_path / "photos"
    expected = {kind: write_images(folder / kind, PEOPLE[kind], mode) for kind in PEOPLE}
    (folder / "train" / "ann" / ".DS_Store").write_text("")
    data = load(folder)
    assert data.class_names == ("cat", "dog")
    assert data.example_shape == ((8, 9) if mode == "L" else (8, 9, 3))
    labels = {
        "train": {"ann": [0, 0, 1], "Zoë 李": [1, 1]},
        "test": {"ann": [0], "Zoë 李": [1]},
    }
    for kind, of_clients in labels.items():
        rows = {
            name: (expected[kind][name], of_clients[name]) for name in sorted(of_clients)
        }
        check_clients(data, rows, kind)


def test_folders_of_images_without_tests_or_without_clients(tmp_path):
    write_images(tmp_path / "one", PEOPLE["train"])
    data = load(tmp_path / "one")
    assert data.test_counts.tolist() == [1, 1]
    assert data.train_counts.tolist() == [1, 2]
    for kind, numbers in (("train", range(8)), ("test", range(20, 24))):
        classes = {"cat": list(numbers)[::2], "dog": list(numbers)[1::2]}
        write_images(tmp_path / "classes", {kind: classes})
    data = load(tmp_path / "classes", 2, partition="iid")
    assert data.y_train.tolist() == [0] * 4 + [1] * 4
    assert data.x_test[:, 1, 1].tolist() == [20, 22, 21, 23]


def test_wrong_folders_of_images(tmp_path):
    folder = tmp_path / "photos"
    for kind, clients in PEOPLE.items():
        write_images(folder / kind, clients)
    path = folder / "train" / "ann" / "cat" / "1.png"
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    with refused("photos': train/ann/cat/1.png is damaged"):
        load(folder)
    with refused(r"^(?!.*damaged.*damaged)name="):
        load(folder)
    from PIL import Image

    Image.new("L", (9, 8)).save(path, "GIF")
    with refused("photos': train/ann/cat/1.png is damaged .*cannot identify"):
        load(folder)
    path.unlink()
    write_images(tmp_path / "wide", {"ann": {"cat": [1]}}, size=(8, 8))
    (tmp_path / "wide" / "ann" / "cat" / "1.png").rename(path)
    with refused(r"train/ann/cat/2.png: has shape \(8, 9\), others \(8, 8\); give all"):
        load(folder)
    Image.new("P", (9, 8)).save(path)
    with refused(r"train/ann/cat/1.png: is of mode P; convert it to L \(grey\) or RGB"):
        load(folder)
    path.write_bytes(whole)
    (folder / "train" / "ann" / "cat" / "notes.txt").write_text("")
    with pytest.warns(
        UserWarning, match=r"ann: \['notes.txt'\] are no images .* left out"
    ):
        load(folder)
    (folder / "train" / "stray.png").write_bytes(whole)
    with refused("train: stray.png is not in the folder of a client; move it there"):
        load(folder)


# ---- HDF5


class Group(dict):
    """A group or file of h5py in memory; arrays are read with [()]."""

    def get(self, name, getlink):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Array(np.ndarray):
    """An array of h5py."""

    is_virtual = False
    external = None


def group(clients, x="x", y="y"):
    made = Group()
    for name, columns in clients.items():
        arrays = [np.asarray(column).view(Array) for column in columns]
        made[name] = Group(zip((x, y), arrays, strict=True))
    return made


@pytest.fixture
def in_memory(monkeypatch, tmp_path):
    """Return a function that makes a file of h5py from groups."""
    contents = {}

    def opened(path, mode):
        if str(path) not in contents:
            raise OSError("Unable to open file (truncated file)")
        return contents[str(path)]

    monkeypatch.setitem(
        sys.modules, "h5py", types.SimpleNamespace(File=opened, HardLink=Group)
    )

    def put(name, content):
        (tmp_path / name).write_bytes(b"\x89HDF")
        contents[str(tmp_path / name)] = content
        return tmp_path / name

    return put


BY_GROUP = {
    "train": {"f1": ([[1.0, 2.0], [3.0, 4.0]], [7, 9]), "f2": ([[5.0, 6.0]], [7])},
    "test": {"f1": ([[0.5, 0.25]], [9]), "f2": ([[0.75, 1.5]], [7])},
}


def check_groups(data):
    assert data.class_names == ("7", "9")
    check_clients(
        data, {"f1": (BY_GROUP["train"]["f1"][0], [0, 1]), "f2": ([[5, 6]], [0])}
    )
    check_clients(data, {"f1": ([[0.5, 0.25]], [1]), "f2": ([[0.75, 1.5]], [0])}, "test")


def test_groups_of_hdf5(in_memory, tmp_path):
    parts = {kind: group(clients) for kind, clients in BY_GROUP.items()}
    check_groups(load(in_memory("mine.h5", Group(parts))))
    for kind, clients in BY_GROUP.items():
        content = Group(examples=group(clients, "pixels", "label"))
        in_memory(f"fed_emnist_{kind}.h5", content)
    check_groups(load(tmp_path))
    one = load(
        in_memory("one.hdf5", group(BY_GROUP["train"] | {"f3": ([[1, 2]] * 5, [7] * 5)})),
        partition="iid",
        num_clients=1,
    )
    assert one.num_clients == 1


def test_wrong_files_of_hdf5(in_memory, tmp_path, monkeypatch):
    (tmp_path / "cut.h5").write_bytes(b"\x89HDF")
    with refused("cut.h5' is damaged or is not in a layout of HDF5.*truncated"):
        load(tmp_path / "cut.h5")
    parts = {kind: group(clients) for kind, clients in BY_GROUP.items()}
    parts["train"]["f2"] = Group(snippets=np.zeros(3))
    with refused(
        "mine.h5': client 'f2' has snippets; give it arrays of inputs and of labels"
    ):
        load(in_memory("mine.h5", Group(parts)))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with refused(
        "mine.h5': h5py is not installed; pip install h5py, or write an .npz file"
    ):
        load(tmp_path / "mine.h5")


def test_hdf5_as_h5py_writes_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        for kind, clients in BY_GROUP.items():
            for name, (x, y) in clients.items():
                file[f"{kind}/{name}/x"] = x
                file[f"{kind}/{name}/y"] = y
    check_groups(load(tmp_path / "mine.h5"))
    whole = (tmp_path / "mine.h5").read_bytes()
    (tmp_path / "mine.h5").write_bytes(whole[:900])
    with refused("mine.h5' is damaged or is not in a layout of HDF5"):
        load(tmp_path / "mine.h5")


def test_hdf5_that_leads_out_of_its_file(tmp_path, small_memory):
    """Links, virtual arrays and arrays of other files would read any file of the user's."""
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    layout = h5py.VirtualLayout((2, 2), "f4")
    layout[...] = h5py.VirtualSource(secret, "x", (2, 2))

    def virtual(file):
        file["train/f1"].create_virtual_dataset("x", layout)

    def external(file):
        file["train/f1"].create_dataset("x", (2, 2), "f4", external=[(secret, 0, 16)])

    def huge(file):
        file["train/f1"].create_dataset("x", (2, 1 << 40), "f4", chunks=(1, 9))

    def linked(file):
        file["train/f1/x"] = h5py.ExternalLink(secret, "x")

    def linked_client(file):
        del file["train/f1"]
        file["train/f1"] = h5py.SoftLink("/test/f1")

    for number, (change, message) in enumerate(
        {
            virtual: "client 'f1' has its x in another file",
            external: "client 'f1' has its x in another file",
            huge: "bytes are too many to read",
            linked: "'x' is a link; write the arrays themselves there",
            linked_client: "'f1' is a link; write the arrays themselves there",
        }.items()
    ):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            for name, (x, y) in BY_GROUP["train"].items():
                file[f"train/{name}/x"] = x
                file[f"train/{name}/y"] = y
            del file["train/f1/x"]
            change(file)
        with refused(message):
            load(path)


# ---- LEAF's Shakespeare, CelebA and Reddit


def test_leafs_shakespeare(tmp_path):
    """Tokens are LEAF's numbers of characters + 1, and labels the number of the next one."""
    for kind, x, y in (
        ("train", ["to be", "o be "], ["!", "7"]),
        ("test", [" be o"], ["!"]),
    ):
        write(tmp_path / kind / "all_data.json", {"HAMLET_Ophelia": (x, y)})
    # LEAF counts 79 lines that it leaves out between training and test
    tests = tmp_path / "test" / "all_data.json"
    tests.write_text(
        tests.read_text().replace('"num_samples": [1]', '"num_samples": [80]')
    )
    data = load(tmp_path)
    assert (data.num_classes, data.example_shape) == (80, (5,))
    assert data.class_names[:4] == ("\n", " ", "!", '"')
    assert data.x_train.tolist() == [[73, 68, 2, 55, 58], [68, 2, 55, 58, 2]]
    assert data.y_train.tolist() == [2, 18]
    assert [data.class_names[label] for label in (2, 18)] == ["!", "7"]


def test_leafs_celeba(tmp_path):
    """Images are resized to 84 x 84, in colour, as LEAF's model does."""
    pillow = pytest.importorskip("PIL.Image")
    faces = tmp_path / "celeba" / "data" / "raw" / "img_align_celeba"
    faces.mkdir(parents=True)
    root = faces.parents[1]
    write(root / "train" / "all.json", {"7": (["1.PNG", "my 2.webp"], [1.0, 0.0])})
    write(root / "test" / "all.json", {"7": (["3.png"], [1])})
    with refused("raw/img_align_celeba/1.PNG is missing"):
        load(tmp_path / "celeba")
    for number, name in enumerate(("1.PNG", "my 2.webp", "3.png"), start=1):
        image = pillow.new("RGB", (178, 218), (number, 80 * number, 0))
        image.save(faces / name, lossless=True)
    data = load(tmp_path / "celeba")
    assert data.x_train.shape == (2, 84, 84, 3)
    assert data.x_train[:, 50, 50].tolist() == [[1, 80, 0], [2, 160, 0]]
    assert (data.y_train.tolist(), data.class_names) == ([1, 0], ("0", "1"))
    pillow.new("RGB", (178, 218), (9, 9, 9)).save(
        faces / "my 2.webp", lossless=True
    )  # in place
    assert load(tmp_path / "celeba").x_train[1, 50, 50].tolist() == [9, 9, 9]
    (faces / "my 2.webp").write_bytes(b"no image")
    with refused("raw/img_align_celeba/my 2.webp is damaged"):
        load(tmp_path / "celeba")


def comment(*words, length=4):
    """Return a comment of Reddit in LEAF's layout: its sequences, and those of the following tokens."""
    tokens = ["<BOS>", *words, "<EOS>"]
    following = [*words, "<EOS>", "<PAD>"]
    pad = ["<PAD>"] * (-len(tokens) % length)
    sequences = np.reshape([*tokens, *pad], (-1, length)).tolist()
    targets = np.reshape([*following, *pad], (-1, length)).tolist()
    return sequences, {"target_tokens": targets, "subreddit": "jax", "score": 1}


def test_leafs_reddit(tmp_path):
    """Sequences of four tokens; LEAF's num_samples counts the comments of all splits."""
    train = [comment("a", "b", "a"), comment("a")]
    test = [comment("b", "c")]
    for kind, comments in (("train", train), ("test", test)):
        x, y = zip(*comments, strict=True)
        path = tmp_path / kind / "reddit_0_train.json"
        path.parent.mkdir()
        users = {"users": ["1"], "num_samples": [9], "user_data": {"1": {"x": x, "y": y}}}
        path.write_text(json.dumps(users))
    with refused(
        "inputs are lists of token lists, as in LEAF's Reddit.*srp.data.next_words"
    ):
        load(tmp_path)
    data = next_words(tmp_path, vocabulary=2)
    # 1 a, 2 b, 3 unknown, 4 beginning, 5 end
    assert data.x_train.tolist() == [[4, 1, 2, 1], [5, 0, 0, 0], [4, 1, 5, 0]]
    assert data.y_train.tolist() == [[1, 2, 1, 5], [0, 0, 0, 0], [1, 5, 0, 0]]
    assert data.x_test.tolist() == [[4, 2, 3, 5]]
    assert data.y_test.tolist() == [[2, 3, 5, 0]]
    broken = json.loads((tmp_path / "test" / "reddit_0_train.json").read_text())
    broken["user_data"]["1"]["y"][0]["target_tokens"][0][0] = "other"
    (tmp_path / "test" / "reddit_0_train.json").write_text(json.dumps(broken))
    with refused("target_tokens .* do not follow"):
        next_words(tmp_path)


# ---- all layouts


def write_leaf(name, x, y):
    """Write two rows for training, and the others for tests."""
    for kind, rows in (("train", slice(2)), ("test", slice(2, None))):
        write(Path(name) / kind / "all.json", {"ann": (x[rows], y[rows])})


def write_sets(*paths):
    """Write groups of HDF5 as h5py does."""
    import h5py

    for kind, clients in BY_GROUP.items():
        with h5py.File(str(paths[0] if kind == "train" else paths[-1]), "a") as file:
            group = kind if len(paths) == 1 else "examples"
            for name, (x, y) in clients.items():
                file[f"{group}/{name}/x"] = x
                file[f"{group}/{name}/y"] = y


def write_fed_emnist():
    Path("fed_emnist").mkdir()
    write_sets("fed_emnist/fed_emnist_train.h5", "fed_emnist/fed_emnist_test.h5")


def write_faces():
    folder = Path("celeba/raw/img_align_celeba")
    write_images(folder, {"a": {"b": [100, 120]}}, "RGB")
    users = {"7": (["a/b/100.png"], [1])}
    for kind in ("train", "test"):
        write(Path("celeba") / kind / "all.json", users)
    for path in folder.glob("a/b/*"):
        path.rename(folder / path.name)
    write(Path("celeba/test/all.json"), {"7": (["120.png"], [1])})


def write_reddit():
    for kind, words in (("train", "ab"), ("test", "ba")):
        x, y = comment(*words)
        write(Path("reddit") / kind / "all.json", {"ann": ([x], [y])})


def write_people():
    for kind, clients in PEOPLE.items():
        write_images(Path("photos") / kind, clients)


def write_parts(name, content):
    Path(name).write_text(content)


PARTS = {"train": {"ann": [0, 4]}, "test": {"ann": [2]}}
FL_BENCH = {"data_indices": [{"train": np.array([0, 4]), "test": np.array([2])}]}
CSV = "client,split,row\nann,train,0\nann,train,4\nann,test,2\n"
FLOWERS = {"train": {"a": [1, 90], "b": [3, 4]}, "test": {"a": [5, 6], "b": [7]}}
TABLE = "age,clinic,outcome\n1,A,good\n2,B,bad\n3,A,good\n4,B,bad\n"
# call -> what writes the files that it reads
WRITERS = {
    'load("mine.npz", num_clients=2)': lambda: write_arrays("mine.npz", [0, 1] * 3),
    'load("pathmnist.npz", num_clients=2)': lambda: np.savez(
        "pathmnist.npz", **medmnist()
    ),
    'load("FashionMNIST", num_clients=2)': lambda: write_idx(Path("FashionMNIST")),
    'load("UCI HAR Dataset")': lambda: write_har(Path("UCI HAR Dataset")),
    'load("UCI HAR Dataset/train/Inertial Signals")': lambda: write_signals(
        Path("UCI HAR Dataset")
    ),
    'load("femnist")': lambda: write_leaf("femnist", [[0.5], [1.0], [0.25]], [0, 1, 0]),
    'load("shakespeare")': lambda: write_leaf(
        "shakespeare", ["to be", "o be ", " be o"], ["o", "r", "r"]
    ),
    'load("celeba")': write_faces,
    'next_words("reddit")': write_reddit,
    'load("Cifar10")': lambda: write_pfllib(Path("Cifar10")),
    'load("mine.h5")': lambda: write_sets("mine.h5"),
    'load("fed_emnist")': write_fed_emnist,
    'load("photos")': write_people,
    'load("flowers", num_clients=2)': lambda: write_images(Path("flowers"), FLOWERS),
    'from_frame(pd.read_csv("patients.csv"), user="clinic", label="outcome")': lambda: (
        write_parts("patients.csv", TABLE)
    ),
    'load("digits", partition="parts.csv")': lambda: write_parts("parts.csv", CSV),
    'load("digits", partition="parts.json")': lambda: write_parts(
        "parts.json", json.dumps(PARTS)
    ),
    'load("digits", partition="partition.pkl")': lambda: Path(
        "partition.pkl"
    ).write_bytes(pickle.dumps(FL_BENCH)),
    'read_partition("parts.csv")': lambda: write_parts("parts.csv", CSV),
}
PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
CALLS = re.findall(r"^\| .*\| `srp\.data\.(.*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:x_train", "ignore:x_test", "ignore:train_indices")
def test_each_row_of_the_table_of_layouts(call, tmp_path, monkeypatch):
    if "h5" in call or "fed_emnist" in call:
        pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    WRITERS[call]()
    made = eval(f"srp.data.{call}", {"srp": srp, "pd": pd})
    if "read_partition" in call:
        assert made.test["ann"].tolist() == [2]
    else:
        assert made.num_clients in (1, 2, 3)
        assert made.test_counts.min() >= 1


def test_the_table_has_all_layouts():
    assert list(WRITERS) == CALLS


def test_channels_first_are_moved_and_said(tmp_path, in_memory):
    x = np.arange(2 * 3 * 8 * 9).reshape(2, 3, 8, 9) / 7
    parts = {
        kind: group({"0": (x + shift, [0, 1])})
        for kind, shift in (("train", 0), ("test", 1))
    }
    with pytest.warns(UserWarning, match=r"of shape \(3, 8, 9\) are taken for images"):
        data = load(in_memory("mine.h5", Group(parts)))
    assert_allclose(data.x_train, np.moveaxis(x, 1, -1), rtol=1e-6)
    np.savez(
        tmp_path / "mine.npz", x_train=x, y_train=[0, 1], x_test=x + 1, y_test=[0, 1]
    )
    with pytest.warns(
        UserWarning, match=r"x_train: .*\(3, 8, 9\) look like .*np.moveaxis"
    ):
        assert load(tmp_path / "mine.npz", 1).example_shape == (3, 8, 9)


def test_a_test_fraction_is_for_data_without_tests():
    with refused(
        "test_fraction=0.5: the data have test examples of their own; leave it out"
    ):
        load("digits", 10, test_fraction=0.5)


def test_users_of_one_row_have_no_tests(tmp_path, in_memory):
    lonely = {str(i): ([[i + 1.0, 0.0]], [i % 2]) for i in range(3)}
    with refused("test_fraction: no user has two examples, so none can be held out"):
        load(in_memory("mine.h5", group(lonely)))
    clients = group(lonely | {"4": ([[5.0, 1.0], [6.0, 2.0]], [0, 1])})
    with (
        pytest.warns(
            UserWarning, match="natural: 3 of 4 users are left out: 3 have no test"
        ),
    ):
        assert load(in_memory("more.h5", clients)).client_names == ("4",)


def test_a_folder_of_no_layout_says_what_it_has(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with refused(
        rf"has \['notes.txt'\], which is none of the layouts {', '.join(LAYOUTS)}"
    ):
        load(tmp_path)
    with refused(r"notes.txt': is a file, which is none of the layouts"):
        load(tmp_path / "notes.txt")


def test_layouts_do_not_overlap(tmp_path):
    """A folder of one layout fits no other, whatever is asked first."""
    write_har(tmp_path / "har")
    write_idx(tmp_path / "idx")
    write_pfllib(tmp_path / "pfllib")
    write_images(tmp_path / "images", PEOPLE["train"])
    write(tmp_path / "leaf" / "train" / "a.json", {"a": ([[1.0]], [0])})
    np.savez(tmp_path / "npz.npz", **medmnist())
    for kind in ("train", "test"):
        (tmp_path / "hdf5").mkdir(exist_ok=True)
        (tmp_path / "hdf5" / f"mine_{kind}.h5").write_bytes(b"")
    for path in tmp_path.iterdir():
        fitting = [name for name, layout in LAYOUTS.items() if _fits(layout, path)]
        assert fitting == [path.stem], re.escape(path.name)


def _fits(layout, path):
    try:
        return layout.fits(path)
    except OSError:
        return False


@pytest.mark.usefixtures("no_rounds")
def test_the_record_has_the_names_of_classes(tmp_path):
    data = load(write_har(tmp_path / "har"))
    method = srp.methods.get("local_only", dataset=data, hidden=(2,))
    history = srp.simulate(method, data, num_rounds=1, seed=0, progress=False)
    assert history.config["data"]["class_names"] == list(data.class_names)
    assert srp.data.holdout(data).class_names == data.class_names
