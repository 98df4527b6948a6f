"""The cache of decoded arrays: damaged, outdated and unfinished files are not used."""

import os
import shutil
import time
import warnings

import numpy as np
import pytest

from fedjax_srp.data import cache

MADE = {"x": np.arange(3000).reshape(1000, 3), "y": np.arange(7, dtype=np.uint8)}


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
    assert all(
        (found[name] == made[name]).all() and found[name].dtype == made[name].dtype
        for name in made
    )


def place_of(data_dir):
    return data_dir / cache.FOLDER / "mnist" / "3.0.1.npz"


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "Bad CRC-32 for file 'x.npy'": lambda path: flip(path, 10_000),
    "File is not a zip file": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "allow_pickle": lambda path: path.write_text("{"),
    "'origin": lambda path: np.savez(path, x=np.zeros(3)),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_cache_is_decoded_again(reason, data_dir):
    read(data_dir)
    DAMAGES[reason](place_of(data_dir))
    with pytest.warns(
        UserWarning, match="the cache is damaged .*; decoding the data again"
    ) as caught:
        assert_same(read(data_dir))
    assert [reason in str(warning.message) for warning in caught] == [True]
    assert_same(read(data_dir, None))


def test_every_flipped_bit_of_a_cache_is_detected(data_dir):
    """With each byte changed in turn, the arrays are read correctly or decoded again."""
    made = {"x": np.arange(7, dtype=np.uint8), "y": np.arange(3)}
    read(data_dir, lambda: made)
    good = place_of(data_dir).read_bytes()
    for place in range(len(good)):
        place_of(data_dir).write_bytes(good)
        flip(place_of(data_dir), place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(read(data_dir, lambda: made), made)


def test_a_cache_of_other_files_or_of_another_decoder_is_not_used(data_dir, monkeypatch):
    read(data_dir)
    (data_dir / "origin").write_text("longer")
    other = {"x": np.ones(3)}
    assert_same(read(data_dir, lambda: other), other)
    monkeypatch.setattr(cache, "_FORMAT", cache._FORMAT + 1)
    assert_same(read(data_dir))


def test_an_unfinished_cache_is_not_used(data_dir, monkeypatch):
    place, savez = place_of(data_dir), np.savez

    def killed(file, **arrays):
        savez(file, **arrays)
        for name, age in (
            ("old45678", 2 * 86_400),
            ("young678", 60),
        ):  # SIGKILL leaves the folder
            left = shutil.copytree(file.parent, place.with_name(f".{name}.writing"))
            os.utime(left, (time.time() - age,) * 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", killed)
        with pytest.raises(KeyboardInterrupt):
            read(data_dir)
    assert sorted(path.name for path in place.parent.iterdir()) == [
        ".old45678.writing",
        ".young678.writing",
    ]
    assert_same(read(data_dir))
    assert sorted(path.name for path in place.parent.iterdir()) == [
        ".young678.writing",
        "3.0.1.npz",
    ]


def test_arrays_of_a_read_only_folder_are_cached_elsewhere_or_nowhere(data_dir, tmp_path):
    (data_dir / cache.FOLDER).write_text("in the way")
    read(data_dir)
    assert len(list((tmp_path / "own").glob("fedjax_srp/*/mnist/3.0.1.npz"))) == 1
    assert_same(read(data_dir, None))
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "own").write_text("in the way")
    with pytest.warns(
        UserWarning, match="cannot cache decoded arrays.*make one of .* writable"
    ):
        assert_same(read(data_dir))


def test_concurrent_decoding_leaves_one_file(data_dir):
    """The last of two processes that decode at the same time replaces an equal file."""
    assert_same(read(data_dir, lambda: read(data_dir)))
    assert_same(read(data_dir, None))
    assert [path.name for path in place_of(data_dir).parent.iterdir()] == ["3.0.1.npz"]
