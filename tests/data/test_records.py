"""Data sets that tensorflow-datasets prepared; damaged files are not used."""

import re
import shutil
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from numpy.testing import assert_array_equal
from reference.small import refused
from small_archives import NAMES, arrays
from tensorflow_datasets.image_classification import mnist

from fedjax_srp.data import is_ready, load, records

RECORDS = "mnist-train.array_record-00000-of-00001"
VERSION = "mnist/3.0.1"


def by_pixels(x, y):
    """Sort images with their labels, since records are shuffled when they are written."""
    order = np.lexsort(x.reshape(len(x), -1)[:, :5].T)
    return x[order], y[order]


@pytest.mark.parametrize("name", NAMES)
def test_all_pixels_and_labels_are_read(name, small, no_network):
    raw = records.read(name, small)
    made = arrays(name)
    images = records.IMAGES[name]
    for split in ("train", "test"):
        x, y = by_pixels(getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}"))
        own_x, own_y = by_pixels(made[f"x_{split}"], made[f"y_{split}"])
        assert_array_equal(x, own_x, strict=True)
        assert_array_equal(y, own_y - images.first_label)
    assert raw.num_classes == images.num_classes
    assert not no_network


def test_sizes_and_versions_agree_with_the_catalogue():
    assert records.IMAGES["mnist"][1:3] == (mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES)
    for config in mnist.EMNIST.BUILDER_CONFIGS:
        images = records.IMAGES[f"emnist/{config.name}"]
        if config.name == "letters":  # all that are in the archive
            assert images.num_cut == config.train_examples
            assert images[1:3] == (26 * 4800, 26 * 800)
        else:
            assert images[1:3] == (config.train_examples, config.test_examples)
    for name, images in records.IMAGES.items():
        builder = tfds.builder_cls(name.partition("/")[0])
        assert images.version == str(builder.VERSION)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"num_cut": 60},
            "has only 60 of 124,800 training examples, as tensorflow-datasets",
        ),
        ({"num_classes": 20}, r"has the train labels 1\.\.26"),
        ({"first_label": 2}, r"has the train labels 1\.\.26"),
    ],
)
def test_letters_that_are_others_are_refused(change, problem, data_dir, monkeypatch):
    other = records.IMAGES["emnist/letters"]._replace(**change)
    monkeypatch.setitem(records.IMAGES, "emnist/letters", other)
    folder = re.escape(f"{data_dir}/emnist/letters/3.1.0")
    run = f"delete '{folder}' and run fedjax-srp data prepare emnist/letters"
    with refused(f"{problem}.*; {run}"):
        load("emnist/letters", 2, data_dir=data_dir)


def test_a_cached_read_does_not_import_tensorflow_datasets(data_dir, monkeypatch):
    first = records.read("mnist", data_dir)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    second = records.read("mnist", data_dir)
    for one, other in zip(first[:4], second[:4], strict=True):
        assert_array_equal(one, other)
    assert "tensorflow" not in sys.modules


def change(path, content):
    path.write_bytes(content(path.read_bytes()))


def flip(content):
    return content[:10_000] + bytes([content[10_000] ^ 1]) + content[10_001:]


def replace(folder, other):
    """Replace a folder by the content of another data set."""
    shutil.rmtree(folder)
    shutil.copytree(folder.parents[1] / other, folder)


UNFINISHED = {
    "it has not been prepared": lambda folder: shutil.rmtree(folder.parent),
    "it has not been prepared (data_dir=": lambda folder: folder.rename(
        folder.with_name("3.0.0")
    ),
    "its preparation did not finish (incomplete.AB_3.0.1)": lambda folder: folder.rename(
        folder.with_name("incomplete.AB_3.0.1")
    ),
    f"{VERSION}' lacks dataset_info.json: its preparation or a copy did": lambda folder: (
        folder / "dataset_info.json"
    ).unlink(),
    "has no array_record files, and others need TensorFlow": lambda folder: [
        path.unlink() for path in folder.glob("*array_record*")
    ],
}
DAMAGED = {
    "' is damaged (Failed to construct dataset": lambda folder: change(
        folder / "dataset_info.json", lambda _: b"{"
    ),
    "is damaged (Corrupted Riegeli/records file: chunk data hash mismatch": lambda folder: (
        change(folder / RECORDS, flip)
    ),
    "is damaged (open() failed: No such file": lambda folder: (folder / RECORDS).unlink(),
    "3.0.1. Proto version: 3.0.2": lambda folder: replace(folder, "cifar10/3.0.2"),
    "is damaged (Unknown split 'test'": lambda folder: change(
        folder / "dataset_info.json",
        lambda content: content.replace(b'"name": "test"', b'"name": "rest"'),
    ),
}


@pytest.mark.parametrize(
    ("message", "damage"), (UNFINISHED | DAMAGED).items(), ids=[*UNFINISHED, *DAMAGED]
)
def test_damaged_folders_are_refused_with_a_remedy(message, damage, data_dir, no_network):
    folder = data_dir / VERSION
    damage(folder)
    with refused(f"^name='mnist': .*{re.escape(message)}") as caught:
        load("mnist", 4, data_dir=data_dir)
    text = str(caught.value)
    assert f"run fedjax-srp data prepare mnist --data-dir {str(data_dir)!r}" in text
    assert is_ready("mnist", data_dir) == (message in DAMAGED)
    assert (f"delete {str(folder)!r} and" in text) == (message in DAMAGED)
    assert not no_network


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sentiment140", "no such data set; use one of cifar10"),
        ("emnist", "no such data set (did you mean mnist or emnist/"),
    ],
)
def test_names_that_are_no_data_set_are_refused(name, message, small, monkeypatch):
    for where in (small, small.parent):
        monkeypatch.chdir(where)  # a folder of that name is in the first
        with refused(f"^name='{name}': {re.escape(message)}"):
            load(name, 2, data_dir=small)
