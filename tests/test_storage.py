"""Files are replaced atomically: all files of a group, or none."""

import fcntl
import os
import sys
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from reference.small import refused

from fedjax_srp.results import atomic, csv_files, json_files, sealed_folders
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.locks import LOCK, held
from fedjax_srp.results.sealed_folders import SEAL


def fills_the_disk(path, *_, **__):
    path.write_bytes(b"a part")
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_all_files_unchanged_and_is_named(tmp_path, monkeypatch):
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    atomic.replace({path: lambda place: place.write_text("old") for path in (one, other)})
    (tmp_path / "plain").touch()
    assert one.stat().st_mode == (tmp_path / "plain").stat().st_mode
    said = f"No space left on device: '{tmp_path}'; what was written before is intact"
    with pytest.raises(OSError, match=said):
        atomic.replace({one: lambda path: path.write_text("new"), other: fills_the_disk})
    monkeypatch.setattr("pathlib.Path.write_text", fills_the_disk)
    with pytest.raises(OSError, match=said):
        json_files.write_json(one, {"a": 2})
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"one.csv": "old", "other.csv": "old", "plain": ""}


LINKS = {
    "link": lambda place, precious: place.symlink_to(precious),
    "hard link": lambda place, precious: os.link(precious, place),
    "dangling link": lambda place, precious: place.symlink_to(
        precious.with_name("nothing")
    ),
    "pipe": lambda place, precious: os.mkfifo(place),
    "folder": lambda place, precious: place.mkdir(),
}


def lock(path):
    with held(path.parent, "out"):
        pass


WRITERS = {
    LOCK: lock,
    "records.0": lambda path: atomic.append(path, 0, b"rounds"),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("put", LINKS.values(), ids=LINKS)
def test_a_lock_or_log_that_is_no_plain_file_is_refused_and_nothing_is_written(
    put, name, tmp_path
):
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    out.mkdir()
    put(out / name, precious)
    with refused(
        rf"^(out='.*out': )?'.*{name}' is a link or no plain file: remove it, or"
    ):
        WRITERS[name](out / name)
    assert precious.read_text() == "precious"
    assert set(os.listdir(tmp_path)) == {"precious", "out"}


def test_a_lock_that_its_last_holder_removes_meanwhile_is_made_again(
    tmp_path, monkeypatch
):
    flock, removed = fcntl.flock, []

    def late(file, how):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    again = refused(r"out=.*: process \d+ on .* is running here")
    with held(tmp_path, "out"), again, held(tmp_path, "out"):
        pass


@pytest.mark.parametrize("leads", ["precious", "nothing", "keepsakes"])
def test_a_link_in_a_folder_is_replaced_and_its_target_is_not_written(leads, tmp_path):
    out, keepsakes = tmp_path / "out", tmp_path / "keepsakes"
    for folder in (out, keepsakes):
        folder.mkdir()
    precious = tmp_path / "precious", keepsakes / "one"
    for path in precious:
        path.write_text("precious")
    predictable = {".history.csv.tmp", ".history.csv.writing", ".writable"}
    predictable |= {".models.0.writing", ".models.gone"}
    for name in {"history.csv", "models"} | predictable:
        (out / name).symlink_to(tmp_path / leads)
    atomic.writable(out)
    atomic.replace({out / "history.csv": lambda path: path.write_text("new")})
    for _ in range(2):
        sealed_folders.write(out / "models", {"a": np.ones(3)}, {})
    assert set(os.listdir(out)) == {"history.csv", "models"} | predictable
    assert (out / "history.csv").read_text() == "new"
    np.testing.assert_array_equal(sealed_folders.read(out / "models")["a"], np.ones(3))
    assert set(os.listdir(tmp_path)) == {"precious", "keepsakes", "out"}
    assert {path.read_text() for path in precious} == {"precious"}


@pytest.mark.parametrize("name", ["run[2]", os.fsdecode(b"a\xff")])
def test_arrays_are_kept_in_folders_of_odd_names(name, tmp_path, monkeypatch):
    """Orbax takes brackets for a pattern, and drops the arrays."""
    (tmp_path / "temporary[1]").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary[1]"))
    sealed_folders.write(tmp_path / name, {"a": np.arange(3)}, {})
    assert sealed_folders.read(tmp_path / name)["a"].tolist() == [0, 1, 2]


def test_cells_that_a_spreadsheet_would_run_get_an_apostrophe(tmp_path):
    harmful = ("=1+1", "+a", "-a", "@a", "'=1", "-inf", "+1+1")
    harmless = ("a=1", "\ufffd=1", "-1.5e-3", "+2", "", "'a", -1.5, None, True)
    assert [csv_files.as_cell(text) for text in harmful] == [f"'{t}" for t in harmful]
    assert tuple(map(csv_files.as_cell, harmless)) == harmless
    assert csv_files.as_cell("\t=1") == "\ufffd=1"
    frame = pd.DataFrame({"method": ["=1", "b"], "=x": [-1.5, 2.0], "+y": [True, False]})
    csv_files.as_csv(frame)(tmp_path / "table.csv")
    written = (tmp_path / "table.csv").read_text()
    assert written == "method,'=x,'+y\n'=1,-1.5,True\nb,2.0,False\n"


def test_tables_are_written_as_pandas_writes_them(tmp_path):
    columns = {
        "float": np.array([0.1, np.nan, np.inf, 1e-300, -0.0]),
        "single": np.array([0.1, np.nan, 3e38, 1e-40, 2.0], np.float32),
        "integer": np.arange(5, dtype=np.int64),
        "flag": np.array([True, False, True, True, False]),
        "name": np.array(["a,b", 'a "b"', "é", "", None], object),
    }
    frame = pd.DataFrame(columns)
    of_frames = frame.assign(
        missing=pd.Series([1, None, 2**62, 0, -1], dtype="Int64"),
        single=pd.Series([np.float32(0.1), np.float32("nan"), True, None, pd.NA]),
        day=pd.to_datetime(["2020-01-01", None, "2020-01-02", None, None]),
        kind=pd.Series(["a", None, "b", "a", "b"], dtype="category"),
    )
    written = tmp_path / "table.csv"
    for table, expected in ((columns, frame), (frame, frame), (of_frames, of_frames)):
        csv_files.as_csv(table)(written)
        assert written.read_text("utf-8") == expected.to_csv(index=False)


def test_an_array_that_all_devices_have_compiles_nothing_when_it_is_written(tmp_path):
    devices = jax.sharding.Mesh(jax.devices(), "devices")
    everywhere = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec())
    arrays = {}
    for rows in (8, 16):
        values = np.arange(rows * 3.0, dtype=np.float32).reshape(rows, 3)
        arrays[str(rows)] = jax.device_put(values, everywhere)
    compiled = []

    def note(event, duration_secs, **of_event):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(of_event["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        sealed_folders.write(tmp_path / "some", arrays, {})
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == []
    restored = sealed_folders.read(tmp_path / "some", arrays)
    for name, array in arrays.items():
        assert restored[name].sharding == array.sharding
        assert np.array_equal(restored[name], array)


def sealed(folder, change):
    """Write arrays with another seal."""
    sealed_folders.write(folder, {"a": np.ones(3)}, {})
    seal = json_files.read_json(folder / SEAL)
    json_files.write_json(folder / SEAL, seal | change)
    return folder


def test_a_folder_in_the_place_of_a_file_leaves_the_others_unchanged(tmp_path):
    one, other = tmp_path / "history.csv", tmp_path / "accuracy.png"
    one.write_text("old")
    other.mkdir()
    new = lambda path: path.write_text("new")
    with pytest.raises(IsADirectoryError, match=r"accuracy\.png'$"):
        atomic.replace({one: new, other: new})
    assert one.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["accuracy.png", "history.csv"]


@pytest.mark.parametrize(
    "name", ["../secret", "/dev/zero", "a/../../secret", "pipe", "a\0b"]
)
def test_names_in_a_seal_are_plain_files_of_its_folder(name, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    right = sealed_folders.digests(tmp_path, [secret])["secret"]
    for place, digest in enumerate((right, [0, ""], 3)):
        folder = sealed(tmp_path / str(place), {"files": {name: digest}})
        (folder / "a").mkdir(exist_ok=True)
        os.mkfifo(folder / "pipe")
        with pytest.raises(DamagedError):
            sealed_folders.read(folder)


@pytest.mark.parametrize(
    "change", [{"shapes": {"a": [[10**12], "float32"]}}, {"shapes": []}, {"files": 3}]
)
def test_a_seal_of_impossible_arrays_is_refused(change, tmp_path):
    with pytest.raises(DamagedError, match=SEAL):
        sealed_folders.read(sealed(tmp_path / "arrays", change))


@pytest.mark.parametrize("call", ["unlink", "ftruncate", "write"])
def test_a_lock_is_released_although_its_file_cannot_be_changed(
    call, tmp_path, monkeypatch
):
    def fails(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with held(tmp_path, "out"):
            pass
    with (
        held(tmp_path, "out"),
        refused("is running here") as error,
        held(tmp_path, "out"),
    ):
        pass
    assert error.value.by_this_process


def left(name):
    """Leave a coroutine of a name that nobody awaits."""

    async def coroutine():
        return name

    coroutine.__qualname__ = name
    _ = coroutine()


def test_only_the_coroutines_of_a_failed_save_are_hidden(monkeypatch):
    unraisable = []

    def hook(found):
        unraisable.append(str(found.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", hook)
    names = ("async_serialize_from_host.<locals>.write_fragment", "mine")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sealed_folders._hide_late_writers.__wrapped__()
        for name in names:
            left(name)
        assert [str(each.message) for each in caught] == [
            "coroutine 'mine' was never awaited"
        ]
        warnings.simplefilter("error")  # now they end in the hook
        for name in names:
            left(name)
    assert unraisable == ["coroutine 'mine' was never awaited"]
