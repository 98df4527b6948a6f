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


def test_programs_are_cached_in_a_private_folder_that_is_announced_once(place, capsys):
    compiled.cache_programs()
    assert (
        jax.config.jax_compilation_cache_dir
        == os.environ["JAX_COMPILATION_CACHE_DIR"]
        == str(place)
    )
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    said = capsys.readouterr().err
    assert said.startswith(
        f"compiled programs are kept in {place}, at most 1 GB: delete it at will; JAX_ENABLE_"
    )
    jax.config.update("jax_compilation_cache_dir", None)
    compiled.cache_programs()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "setting", ["jax_compilation_cache_dir", "jax_enable_compilation_cache"]
)
def test_settings_of_jax_take_precedence(place, setting, tmp_path):
    before = getattr(jax.config, setting)
    jax.config.update(
        setting, str(tmp_path / "other") if setting.endswith("dir") else False
    )
    try:
        compiled.cache_programs()
    finally:
        jax.config.update(setting, before)
    assert not place.exists()


def test_a_folder_that_others_can_write_to_is_not_used(place):
    place.mkdir(parents=True)
    place.chmod(0o777)
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_within_one_that_others_can_write_to_is_not_used(
    place, tmp_path, capsys
):
    compiled.cache_programs()
    jax.config.update("jax_compilation_cache_dir", None)
    place.parent.chmod(0o770)
    capsys.readouterr()
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"chmod go-w {place.parent})" in said


def test_a_folder_is_checked_again_where_it_is_used_already(place):
    """Workers of a grid get it by the environment."""
    compiled.cache_programs()
    place.rmdir()
    place.mkdir()
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
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_folders_above_the_home_are_not_checked(place, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv("HOME", str(home))
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir == str(compiled.folder())


def test_all_new_folders_are_private_under_any_mask(place, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        compiled.cache_programs()
    finally:
        os.umask(before)
    made = [compiled.folder(), *compiled.folder().parents][:4]
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o700] * 4


def test_programs_that_cannot_be_read_are_removed_and_others_are_read_once(
    place, monkeypatch
):
    compiled._make(place)
    whole = zlib.compress(bytes(range(256)) * 100)
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    monkeypatch.setattr(compiled, "WRITING", 0.5)
    used = time.time() - 1000
    for name, content in (
        ("whole", whole),
        ("cut", whole[:-5]),
        ("flipped", flipped),
        ("empty", b""),
    ):
        path = place / f"{name}-cache"
        path.write_bytes(content)
        os.utime(path, (used, time.time()))
    time.sleep(0.6)
    (place / "new-cache").write_bytes(whole[:-5])  # another process may be writing it
    compiled.cache_programs()
    assert sorted(path.name for path in place.iterdir()) == ["new-cache", "whole-cache"]
    assert stat.S_IMODE((place / "whole-cache").stat().st_mode) == 0o400
    monkeypatch.setattr(zlib, "decompress", lambda content: pytest.fail("read again"))
    compiled.cache_programs()
    assert (place / "whole-cache").stat().st_atime == pytest.approx(used)


def test_a_program_under_the_name_of_another_is_compiled_again(place):
    """JAX would take it for the other one: an AssertionError, or wrong results."""
    kept = jax.config.jax_persistent_cache_min_compile_time_secs
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
        jax.config.update("jax_persistent_cache_min_compile_time_secs", kept)
        _reset()


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


def test_an_unwritable_home_is_no_error(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_unused_files_are_removed_and_the_oldest_beyond_the_limit(place, monkeypatch):
    compiled._make(place)
    now = time.time()
    for name, age in (("forgotten", compiled.UNUSED + 60), ("old", 20), ("new", 10)):
        path = place / f"{name}-cache"
        path.write_bytes(bytes(10))
        os.utime(path, (now - age, now))
    monkeypatch.setattr(compiled, "MOST", 25)
    compiled.cache_programs()
    assert sorted(path.name for path in place.iterdir()) == ["new-cache", "old-cache"]
    monkeypatch.setattr(compiled, "MOST", 15)
    jax.config.update("jax_compilation_cache_dir", None)
    compiled.cache_programs()
    assert [path.name for path in place.iterdir()] == ["new-cache"]
