"""The cache of compiled programs on disk."""

import os
import stat
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from fedjax_srp.xla import disk_cache as compiled


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return the folder that `cache_programs` uses; restore JAX's settings afterwards."""
    kept = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    jax.config.update("jax_compilation_cache_dir", None)
    yield compiled.folder()
    jax.config.update("jax_compilation_cache_dir", kept)


def used():
    """Return the folder that JAX uses after `cache_programs`, as a new process would have it."""
    jax.config.update("jax_compilation_cache_dir", None)
    compiled.cache_programs()
    return jax.config.jax_compilation_cache_dir


def test_programs_are_cached_in_a_private_folder_that_is_announced_once(place, capsys):
    assert used() == os.environ["JAX_COMPILATION_CACHE_DIR"] == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    said = f"compiled programs are kept in {place}, at most 1 GB: delete it at will"
    assert capsys.readouterr().err.startswith(said)
    used()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "value"),
    [("jax_compilation_cache_dir", "other"), ("jax_enable_compilation_cache", False)],
)
def test_settings_of_jax_take_precedence(place, setting, value):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        compiled.cache_programs()
    finally:
        jax.config.update(setting, before)
    assert not place.exists()


def test_a_folder_within_one_that_others_can_write_to_is_not_used(place, capsys):
    used()
    place.parent.chmod(0o770)
    capsys.readouterr()
    assert used() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"chmod go-w {place.parent})" in said


def test_a_folder_is_checked_again_where_it_is_used_already(place):
    """Workers of a grid get it by the environment."""
    compiled.cache_programs()
    place.chmod(0o777)
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_link_in_a_folder_that_others_can_write_to_is_not_followed(
    place, tmp_path, monkeypatch
):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "mine").mkdir(mode=0o700)
    (shared / "link").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "link"))
    assert used() is None


def test_folders_above_the_home_are_not_checked(place, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    assert used() is None
    monkeypatch.setenv("HOME", str(home))
    assert used() == str(compiled.folder())


def test_all_new_folders_are_private_under_any_mask(place, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        compiled.cache_programs()
    finally:
        os.umask(before)
    made = [compiled.folder(), *compiled.folder().parents][:4]
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o700] * 4


def written(place, age=0.0, **contents):
    """Write programs that were read last so many seconds ago."""
    compiled._make(place)
    then = time.time() - age
    for name, content in contents.items():
        path = place / f"{name}-cache"
        path.write_bytes(content)
        os.utime(path, (then, time.time()))
    return then


def kept(place):
    return sorted(path.name.removesuffix("-cache") for path in place.iterdir())


def test_programs_that_cannot_be_read_are_removed_and_others_are_read_once(
    place, monkeypatch
):
    whole = zlib.compress(bytes(range(256)) * 100)
    damaged = {"cut": whole[:-5], "flipped": whole[:-1] + bytes([whole[-1] ^ 1])}
    then = written(place, 1000, whole=whole, empty=b"", **damaged)
    used()  # another process may be writing them
    assert kept(place) == ["cut", "empty", "flipped", "whole"]
    monkeypatch.setattr(compiled, "WRITING", 0.0)
    used()
    assert kept(place) == ["whole"]
    assert stat.S_IMODE((place / "whole-cache").stat().st_mode) == 0o400
    monkeypatch.setattr(zlib, "decompress", lambda content: pytest.fail("read again"))
    used()
    assert (place / "whole-cache").stat().st_atime == pytest.approx(then, abs=1)


def one():
    """Return the result of a program."""

    def swapped(x):
        return jnp.sin(x) @ x.T

    return jax.jit(swapped)(np.ones((3, 4), np.float32)).tolist()


def other():
    """Return the results of another program of this name."""

    def swapped(x, y):
        return x + y, y

    return [each.tolist() for each in jax.jit(swapped)(np.ones(5), np.ones(5))]


def _reset():
    """Forget the programs in memory."""
    jax.clear_caches()
    compilation_cache.reset_cache()


def _swap(left, right):
    aside = left.with_name("aside")
    left.rename(aside)
    right.rename(left)
    aside.rename(right)


def test_a_program_under_the_name_of_another_is_compiled_again(place):
    """JAX would take it for the other one: an AssertionError, or wrong results."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        compiled.cache_programs()
        _reset()
        expected = [one(), other()]
        names = sorted(place.glob("jit_swapped*-cache"))
        assert len(names) == 2
        for _ in range(2):  # before they are checked, and afterwards
            time.sleep(1.2 * compiled._RENAMED)
            _swap(*names)
            compiled.cache_programs()
            assert not [path for path in names if path.exists()]
            _reset()
            assert [one(), other()] == expected
            assert all(path.exists() for path in names)
            _reset()
            compiled.cache_programs()
            assert all(path.exists() for path in names)
            assert [one(), other()] == expected
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
        _reset()


def test_an_unwritable_home_is_no_error(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert used() is None


def test_unused_files_are_removed_and_the_oldest_beyond_the_limit(place, monkeypatch):
    for name, age in (("forgotten", compiled.UNUSED + 60), ("old", 20), ("new", 10)):
        written(place, age, **{name: bytes(10)})
    for most, expected in ((25, ["new", "old"]), (15, ["new"])):
        monkeypatch.setattr(compiled, "MOST", most)
        used()
        assert kept(place) == expected
