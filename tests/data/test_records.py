"""Prepared data sets; damaged files are not used."""

import hashlib
import re
import shutil
import sys

import numpy as np
import pytest
from reference.small import refused
from tensorflow_datasets.image_classification import mnist as catalogue

from fedjax_srp.data import load, names, records

EMNIST_CONFIGS = catalogue.EMNIST.BUILDER_CONFIGS
KINDS = ("train", "test")
IMAGES = {
    "mnist": 10,
    "emnist/letters": 26,
    "emnist/digits": 10,
    "cifar10": 10,
    "cifar100": 100,
}  # -> classes


def fingerprints(x, y):
    """Return sorted hashes of images with their labels, since records are shuffled when they are written."""
    pairs = zip(x, y, strict=True)
    return sorted(
        hashlib.sha1(np.ascontiguousarray(image).tobytes() + bytes([int(label)])).digest()
        for image, label in pairs
    )


@pytest.mark.parametrize("name", IMAGES)
def test_all_pixels_and_labels_are_read(name, small, no_network):
    folder, made, _ = small
    raw = records.read(name, folder)
    columns, first = made[name], records.IMAGES[name].first_label
    for split in ("train", "test"):
        x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
        assert x.dtype == np.uint8
        assert x.shape == columns[f"x_{split}"].shape
        assert fingerprints(x, y) == fingerprints(
            columns[f"x_{split}"], columns[f"y_{split}"] - first
        )
    assert raw.num_classes == IMAGES[name]
    assert not no_network


def test_sizes_agree_with_the_catalogue_except_for_letters():
    sizes = {
        f"emnist/{config.name}": (config.train_examples, config.test_examples)
        for config in EMNIST_CONFIGS
    }
    ours = {
        name: (images.num_train, images.num_test)
        for name, images in records.IMAGES.items()
    }
    assert sizes.pop("emnist/letters") == (
        records.IMAGES["emnist/letters"].num_cut,
        14_800,
    )
    assert ours["emnist/letters"] == (26 * 4800, 26 * 800)  # all that are in the archive
    assert {name: ours[name] for name in sizes} == sizes
    assert ours["mnist"] == (catalogue._TRAIN_EXAMPLES, catalogue._TEST_EXAMPLES)


def test_truncated_letters_are_refused(data_dir, monkeypatch):
    cut = records.IMAGES["emnist/letters"]._replace(num_cut=60)
    monkeypatch.setitem(records.IMAGES, "emnist/letters", cut)
    remedy = f"; delete {data_dir}/emnist/letters/3.1.0 and run fedjax-srp data prepare emnist/letters"
    with refused(
        f"has only 60 of 124,800 training examples, as tensorflow-datasets.*{re.escape(remedy)}"
    ):
        load("emnist/letters", 2, data_dir=data_dir)


def test_load_by_name(small, no_network, monkeypatch):
    folder, _, _ = small
    data = load("emnist/letters", 4, classes_per_client=3, data_dir=folder)
    assert (data.name, data.num_classes, data.example_shape) == (
        "emnist/letters",
        26,
        (28, 28),
    )
    assert load("cifar100", 5, data_dir=folder).num_classes == 100
    monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
    assert load("mnist", 4).scale is not None
    assert set(IMAGES) <= set(names())
    assert not no_network


def test_a_cached_read_does_not_import_tensorflow_datasets(data_dir, monkeypatch):
    first = records.read("mnist", data_dir)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    second = records.read("mnist", data_dir)
    for one, other in zip(first[:4], second[:4], strict=True):
        np.testing.assert_array_equal(one, other)
    assert "tensorflow" not in sys.modules


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path, place=10_000):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


RECORDS = "mnist-train.array_record-00000-of-00001"
UNFINISHED = {
    "it has not been prepared in data_dir=": lambda folder: shutil.rmtree(folder.parent),
    "its preparation did not finish (incomplete.AB_3.0.1)": lambda folder: folder.rename(
        folder.parent / "incomplete.AB_3.0.1"
    ),
    "it has not been prepared in data_dir='": lambda folder: shutil.rmtree(
        folder.parents[1]
    ),
}
DAMAGED = {
    "lacks dataset_info.json, because its preparation or a copy did not finish": lambda folder: (
        (folder / "dataset_info.json").unlink()
    ),
    "3.0.1 lacks dataset_info.json": lambda folder: [
        path.unlink() for path in folder.iterdir()
    ],
    "has a damaged dataset_info.json (Expecting": lambda folder: (
        folder / "dataset_info.json"
    ).write_text("{"),
    "is damaged (Corrupted Riegeli/records file: chunk data hash mismatch": lambda folder: (
        flip(folder / RECORDS)
    ),
    "is damaged (Corrupted Riegeli": lambda folder: truncate(folder / RECORDS),
    "is damaged (ArrayRecord file should be": lambda folder: (
        folder / RECORDS
    ).write_bytes(b""),
    "is damaged (open() failed: No such file": lambda folder: (folder / RECORDS).unlink(),
    "is damaged (could not broadcast input array from shape (32,32,3) into shape (28,28))": lambda folder: (
        replace(folder, "cifar10/3.0.2")
    ),
    "has the train labels 1..26, not 0..9": lambda folder: replace(
        folder, "emnist/letters/3.1.0"
    ),
    "was prepared as tfrecord files, which only TensorFlow reads; prepare it in another folder": lambda folder: (
        edit(folder, "array_record", "tfrecord")
    ),
    "lacks train or test records": lambda folder: edit(
        folder, '"name": "test"', '"name": "rest"'
    ),
}


def replace(folder, other):
    """Replace a folder by the content of another data set."""
    shutil.rmtree(folder)
    shutil.copytree(folder.parents[1] / other, folder)


def edit(folder, old, new):
    text = (folder / "dataset_info.json").read_text()
    assert old in text
    (folder / "dataset_info.json").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("message", "damage"), (UNFINISHED | DAMAGED).items(), ids=[*UNFINISHED, *DAMAGED]
)
def test_damaged_folders_are_refused_with_a_remedy(message, damage, data_dir, no_network):
    damage(data_dir / "mnist" / "3.0.1")
    with refused(f"^name='mnist': .*{re.escape(message)}") as caught:
        load("mnist", 4, data_dir=data_dir)
    text = str(caught.value)
    assert f"run fedjax-srp data prepare mnist --data-dir {data_dir}" in text
    assert message in UNFINISHED or f"delete {data_dir / 'mnist' / '3.0.1'} and" in text
    assert not no_network


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sentiment140",
            "name='sentiment140': is text, which load reads only in LEAF's layout; read its records with",
        ),
        ("emnist", "name='emnist': no such data set (did you mean mnist or emnist/"),
    ],
)
def test_names_that_are_no_data_set_are_refused(name, message, small, monkeypatch):
    for where in (small[0], small[0].parent):
        monkeypatch.chdir(where)  # a folder of that name is in the first
        with refused("^" + re.escape(message)):
            load(name, 2, data_dir=small[0])


def test_the_newest_version_is_read(data_dir):
    shutil.copytree(data_dir / "mnist" / "3.0.1", data_dir / "mnist" / "3.0.10")
    shutil.copytree(data_dir / "mnist" / "3.0.1", data_dir / "mnist" / "3.0.9")
    (data_dir / "mnist" / "3.1.0").mkdir()  # a copy that did not finish
    assert records.find("mnist", data_dir).name == "3.0.10"
