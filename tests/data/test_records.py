"""Prepared data sets and the cache of decoded arrays; damaged files are not used."""

import hashlib
import os
import re
import shutil
import sys
import time
import warnings

import numpy as np
import pytest
from reference.small import refused
from tensorflow_datasets.image_classification import mnist as catalogue

from fedjax_srp.data import cache, load, names, records

EMNIST_CONFIGS = catalogue.EMNIST.BUILDER_CONFIGS
KINDS = ("train", "test")
IMAGES = {"mnist": 10, "emnist/letters": 26, "emnist/digits": 10, "cifar10": 10, "cifar100": 100}  # -> classes


def fingerprints(x, y):
    """Return sorted hashes of images with their labels, since records are shuffled when they are written."""
    pairs = zip(x, y, strict=True)
    return sorted(
        hashlib.sha1(np.ascontiguousarray(image).tobytes() + bytes([int(label)])).digest() for image, label in pairs
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
        assert fingerprints(x, y) == fingerprints(columns[f"x_{split}"], columns[f"y_{split}"] - first)
    assert raw.num_classes == IMAGES[name]
    assert not no_network


def test_sizes_agree_with_the_catalogue_except_for_letters():
    sizes = {f"emnist/{config.name}": (config.train_examples, config.test_examples) for config in EMNIST_CONFIGS}
    ours = {name: (images.num_train, images.num_test) for name, images in records.IMAGES.items()}
    assert sizes.pop("emnist/letters") == (records.IMAGES["emnist/letters"].num_cut, 14_800)
    assert ours["emnist/letters"] == (26 * 4800, 26 * 800)  # all that are in the archive
    assert {name: ours[name] for name in sizes} == sizes
    assert ours["mnist"] == (catalogue._TRAIN_EXAMPLES, catalogue._TEST_EXAMPLES)


def test_truncated_letters_are_refused(data_dir, monkeypatch):
    cut = records.IMAGES["emnist/letters"]._replace(num_cut=60)
    monkeypatch.setitem(records.IMAGES, "emnist/letters", cut)
    remedy = f"; delete {data_dir}/emnist/letters/3.1.0 and run fedjax-srp data prepare emnist/letters"
    with refused(f"has only 60 of 124,800 training examples, as tensorflow-datasets.*{re.escape(remedy)}"):
        load("emnist/letters", 2, data_dir=data_dir)


def test_load_by_name(small, no_network, monkeypatch):
    folder, _, _ = small
    data = load("emnist/letters", 4, classes_per_client=3, data_dir=folder)
    assert (data.name, data.num_classes, data.example_shape) == ("emnist/letters", 26, (28, 28))
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


def cache_of(data_dir):
    return data_dir / cache.FOLDER / "mnist" / "3.0.1.npz"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path, place=10_000):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "Bad CRC-32 for file 'x_train.npy'": flip,
    "Bad CRC-32 for file 'y_test.npy'": lambda path: flip(path, path.read_bytes().index(b"y_test.npy") + 200),
    "File is not a zip file": truncate,
    "allow_pickle": lambda path: path.write_text("{"),
    "'origin": lambda path: np.savez(path, x_train=np.zeros(3)),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_cache_is_decoded_again(reason, data_dir):
    good = records.read("mnist", data_dir).x_train
    DAMAGES[reason](cache_of(data_dir))
    with pytest.warns(UserWarning, match="the cache is damaged .*; decoding the data again") as caught:
        again = records.read("mnist", data_dir)
    assert [reason in str(warning.message) for warning in caught] == [True]
    np.testing.assert_array_equal(again.x_train, good)
    records.read("mnist", data_dir)  # without a warning


def test_every_flipped_bit_of_a_cache_is_detected(tmp_path):
    """With each byte changed in turn, the arrays are read correctly or decoded again."""
    file, origin = tmp_path / "c.npz", [tmp_path / "origin"]
    origin[0].write_text("")
    made = {"x": np.arange(7, dtype=np.uint8), "y": np.arange(3)}
    cache.cached([file], origin, lambda: made)
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good)
        flip(file, place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = cache.cached([file], origin, lambda: made)
        assert found.keys() == made.keys()
        assert all((found[name] == made[name]).all() and found[name].dtype == made[name].dtype for name in made)


def test_a_cache_of_other_records_is_not_used(data_dir, small):
    records.read("mnist", data_dir)
    columns = small[1]["emnist/digits"]
    for split in ("train", "test"):
        source = data_dir / "emnist" / "digits" / "3.1.0" / f"emnist-{split}.array_record-00000-of-00001"
        shutil.copy(source, data_dir / "mnist" / "3.0.1" / f"mnist-{split}.array_record-00000-of-00001")
    raw = records.read("mnist", data_dir)
    assert fingerprints(raw.x_train, raw.y_train) == fingerprints(columns["x_train"], columns["y_train"])


def test_an_unfinished_cache_is_not_used(data_dir, monkeypatch):
    place, savez = cache_of(data_dir), np.savez

    def killed(file, **arrays):
        savez(file, **arrays)
        for name, age in (("old", 2 * 86_400), ("young", 60)):  # SIGKILL leaves the folder
            left = shutil.copytree(file.parent, place.with_name(f".{name}.writing"))
            os.utime(left, (time.time() - age,) * 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", killed)
        with pytest.raises(KeyboardInterrupt):
            records.read("mnist", data_dir)
    assert sorted(path.name for path in place.parent.iterdir()) == [".old.writing", ".young.writing"]
    assert len(records.read("mnist", data_dir).x_train) == 60
    assert sorted(path.name for path in place.parent.iterdir()) == [".young.writing", "3.0.1.npz"]


def test_arrays_of_a_read_only_folder_are_cached_elsewhere(data_dir, tmp_path, monkeypatch):
    (data_dir / cache.FOLDER).write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    records.read("mnist", data_dir)
    assert len(list((tmp_path / "own").glob("fedjax_srp/*/mnist/3.0.1.npz"))) == 1
    monkeypatch.setattr(records, "_decode", None)
    records.read("mnist", data_dir)


def test_no_writable_place_for_a_cache_gives_a_warning(data_dir, tmp_path, monkeypatch):
    (data_dir / cache.FOLDER).write_text("in the way")
    (tmp_path / "own").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    with pytest.warns(UserWarning, match="cannot cache decoded arrays.*make one of .* writable"):
        assert len(records.read("mnist", data_dir).x_train) == 60


def test_concurrent_decoding_leaves_one_file(data_dir):
    """The last of two processes that decode at the same time replaces an equal file."""
    place, origin = cache_of(data_dir), [data_dir / "mnist" / "3.0.1" / "features.json"]

    def decode():
        cache.cached([place], origin, lambda: {"x": np.arange(5)})
        return {"x": np.arange(5)}

    np.testing.assert_array_equal(cache.cached([place], origin, decode)["x"], np.arange(5))
    np.testing.assert_array_equal(cache.cached([place], origin, None)["x"], np.arange(5))
    assert [path.name for path in place.parent.iterdir()] == ["3.0.1.npz"]


def test_a_cache_of_another_decoder_is_not_used(data_dir, monkeypatch):
    records.read("mnist", data_dir)
    monkeypatch.setattr(cache, "_FORMAT", cache._FORMAT + 1)
    monkeypatch.setattr(records, "_decode", lambda *_: {f"{c}_{k}": np.ones(3, int) for c in "xy" for k in KINDS})
    assert len(records.read("mnist", data_dir).x_train) == 3


RECORDS = "mnist-train.array_record-00000-of-00001"
UNFINISHED = {
    "it has not been prepared in data_dir=": lambda folder: shutil.rmtree(folder.parent),
    "its preparation did not finish (incomplete.AB_3.0.1)": lambda folder: folder.rename(
        folder.parent / "incomplete.AB_3.0.1"
    ),
    "it has not been prepared in data_dir='": lambda folder: shutil.rmtree(folder.parents[1]),
}
DAMAGED = {
    "lacks dataset_info.json, because its preparation or a copy did not finish": lambda folder: (
        folder / "dataset_info.json"
    ).unlink(),
    "3.0.1 lacks dataset_info.json": lambda folder: [path.unlink() for path in folder.iterdir()],
    "has a damaged dataset_info.json (Expecting": lambda folder: (folder / "dataset_info.json").write_text("{"),
    "is damaged (Corrupted Riegeli/records file: chunk data hash mismatch": lambda folder: flip(folder / RECORDS),
    "is damaged (Corrupted Riegeli": lambda folder: truncate(folder / RECORDS),
    "is damaged (ArrayRecord file should be": lambda folder: (folder / RECORDS).write_bytes(b""),
    "is damaged (open() failed: No such file": lambda folder: (folder / RECORDS).unlink(),
    "is damaged (could not broadcast input array from shape (32,32,3) into shape (28,28))": lambda folder: replace(
        folder, "cifar10/3.0.2"
    ),
    "has the train labels 1..26, not 0..9": lambda folder: replace(folder, "emnist/letters/3.1.0"),
    "was prepared as tfrecord files, which only TensorFlow reads; prepare it in another folder": lambda folder: edit(
        folder, "array_record", "tfrecord"
    ),
    "lacks train or test records": lambda folder: edit(folder, '"name": "test"', '"name": "rest"'),
}


def replace(folder, other):
    """Replace a folder by the content of another data set."""
    shutil.rmtree(folder)
    shutil.copytree(folder.parents[1] / other, folder)


def edit(folder, old, new):
    text = (folder / "dataset_info.json").read_text()
    assert old in text
    (folder / "dataset_info.json").write_text(text.replace(old, new))


@pytest.mark.parametrize(("message", "damage"), (UNFINISHED | DAMAGED).items(), ids=[*UNFINISHED, *DAMAGED])
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
        ("sentiment140", "name='sentiment140': is text, which load reads only in LEAF's layout; read its records with"),
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
