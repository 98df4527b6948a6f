"""Files are replaced whole, all of those that belong together or none."""

import os

import pytest

from fedjax_srp import stored


def fills_the_disk(path, *_):
    path.write_bytes(b"a part")
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_all_files_as_they_were_and_is_named(tmp_path):
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    stored.replace({path: lambda place: place.write_text("old") for path in (one, other)})
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'; what was written before is intact"):
        stored.replace({one: lambda path: path.write_text("new"), other: fills_the_disk})
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        stored.replace({tmp_path / "third.csv": fills_the_disk})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"one.csv": "old", "other.csv": "old"}


def test_json_that_a_grid_keeps_names_its_folder_on_a_full_disk(tmp_path, monkeypatch):
    stored.write_json(tmp_path / "grid.json", {"a": 1})
    monkeypatch.setattr("pathlib.Path.write_text", fills_the_disk)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        stored.write_json(tmp_path / "grid.json", {"a": 2})
    assert stored.read_json(tmp_path / "grid.json") == {"a": 1}
    assert os.listdir(tmp_path) == ["grid.json"]


def test_a_link_keeps_leading_to_its_file_and_a_pipe_stays_one(tmp_path):
    link, pipe = tmp_path / "latest", tmp_path / "pipe"
    (tmp_path / "file").write_text("old")
    link.symlink_to("file")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    stored.replace({path: lambda place: place.write_text("new") for path in (link, pipe)})
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert pipe.is_fifo()
    assert os.read(reader, 9) == b"new"
    os.close(reader)
