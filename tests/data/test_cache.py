"""The cache of decoded arrays: damaged, outdated and unfinished files are not used."""

import os
import shutil
import time
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedjax_srp.data import cache

MADE = {
    "x_train": np.arange(3000).reshape(1000, 3),
    "y_train": np.arange(1000, dtype=np.uint8),
}


class _DecodedError(Exception):
    pass


def fails():
    raise _DecodedError


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "origin").write_text("")
    return tmp_path / "data"


def read(data_dir, decode=lambda: MADE):
    return cache.cached(data_dir, "mnist/3.0.1", [data_dir / "origin"], decode)


def assert_same(found, made=MADE):
    assert found.keys() == made.keys()
    for name, array in made.items():
        assert_array_equal(found[name], array, strict=True)


def place_of(data_dir):
    return data_dir / cache.FOLDER / "mnist" / "3.0.1.npz"


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "Bad CRC-32 for file 'x_train.npy'": lambda path: flip(path, 10_000),
    "File is not a zip file": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "allow_pickle": lambda path: path.write_text("{"),
    "'origin": lambda path: np.savez(path, x=np.zeros(3)),
}


@pytest.mark.parametrize("reason", [*DAMAGES, "its columns have"])
def test_a_damaged_cache_is_decoded_again(reason, data_dir):
    if reason in DAMAGES:
        read(data_dir)
        DAMAGES[reason](place_of(data_dir))
    else:
        read(data_dir, lambda: MADE | {"y_train": np.zeros(3, np.uint8)})
    with pytest.warns(UserWarning, match=f"damaged .*{reason}.*decoding .* again"):
        assert_same(read(data_dir))
    assert_same(read(data_dir, fails))


def test_a_cache_that_unpacks_to_more_than_the_memory(data_dir, monkeypatch):
    """Whoever wrote the data may have written the cache beside them, too."""
    read(data_dir)
    np.savez_compressed(place_of(data_dir), x=np.zeros(1 << 18))
    monkeypatch.setattr("fedjax_srp.parts.files.machine_memory", lambda: 1 << 20)
    with pytest.warns(UserWarning, match="damaged .*bytes are too many to read"):
        assert_same(read(data_dir))


def test_a_flipped_bit_of_a_cache_is_detected(data_dir):
    """With one byte changed in turn, anywhere, the arrays are read correctly or would be decoded again."""
    made = {"x": np.arange(7, dtype=np.uint8), "y": np.arange(3)}
    read(data_dir, lambda: made)
    good = place_of(data_dir).read_bytes()
    num_detected = 0
    places = range(0, len(good), 5)
    for place in places:
        place_of(data_dir).write_bytes(good)
        flip(place_of(data_dir), place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert_same(read(data_dir, fails), made)
            except _DecodedError:
                num_detected += 1
    assert num_detected > len(places) / 2


def test_a_cache_of_other_files_or_of_another_decoder_is_not_used(data_dir, monkeypatch):
    read(data_dir)
    (data_dir / "origin").write_text("longer")
    other = {"x": np.ones(3)}
    assert_same(read(data_dir, lambda: other), other)
    monkeypatch.setattr(cache, "_FORMAT", cache._FORMAT + 1)
    assert_same(read(data_dir))


def test_an_unfinished_cache_is_not_used(data_dir):
    place = place_of(data_dir)
    for name, days in (("old45678", 2), ("young678", 0)):  # SIGKILL leaves such folders
        left = place.with_name(f".{name}.writing")
        left.mkdir(parents=True)
        np.savez(left / place.name, **MADE)
        os.utime(left, (time.time() - days * 86_400,) * 2)
    made = {"x": np.arange(3)}
    assert_same(read(data_dir, lambda: made), made)
    assert {path.name for path in place.parent.iterdir()} == {
        ".young678.writing",
        place.name,
    }


def test_arrays_of_a_read_only_folder_are_cached_elsewhere_or_nowhere(data_dir, tmp_path):
    (data_dir / cache.FOLDER).write_text("in the way")
    read(data_dir)
    assert len(list((tmp_path / "own").glob("fedjax_srp/*/mnist/3.0.1.npz"))) == 1
    assert_same(read(data_dir, fails))
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "own").write_text("in the way")
    with pytest.warns(
        UserWarning, match="cannot cache decoded arrays.*make one of .* writable"
    ):
        assert_same(read(data_dir))
