"""The cache of compiled programs on disk."""

import os
import stat
import time

import jax
import pytest

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


def test_an_unwritable_home_is_no_error(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiled.cache_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_unused_files_are_removed_and_the_oldest_beyond_the_limit(place, monkeypatch):
    place.mkdir(parents=True, mode=0o700)
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
