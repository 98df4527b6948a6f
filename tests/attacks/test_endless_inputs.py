"""Inputs that never end, or are larger than the memory: refused in one line, and not waited for."""

import os

import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.clocks.traces import read_devices
from fedjax_srp.lab.commands.cli import main
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids import points
from fedjax_srp.results import json_files
from fedjax_srp.results.errors import DamagedError

HUGE = 1 << 43  # bytes of a file without blocks

PUT = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "sparse": lambda path: (path.touch(), os.truncate(path, HUGE)),
}


def leaf(path):
    """Return the folder of LEAF's layout whose file for training this is."""
    (path.parent.parent / "test").mkdir(exist_ok=True)
    (path.parent.parent / "test" / "a.json").write_text("{}")
    return path.parent.parent


READ = {
    "x.npz": srp.data.load,
    "train/a.json": lambda path: srp.data.load(leaf(path)),
    "grid.toml": points.read,
    "devices.json": read_devices,
}


@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
@pytest.mark.parametrize("name", READ)
def test_an_endless_input_is_refused(name, put, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    try:
        put(path)
    except OSError:
        pytest.skip("no files of this size here")
    with refused("not a plain file|too many to read"):
        READ[name](path)


@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
def test_an_endless_index_of_a_grid_is_refused(put, tmp_path):
    try:
        put(tmp_path / units.GRID_INDEX)
    except OSError:
        pytest.skip("no files of this size here")
    with pytest.raises(DamagedError, match=r"not a plain file|too many to read"):
        json_files.read_json(tmp_path / units.GRID_INDEX)


def test_running_out_of_memory_is_one_line(tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr("fedjax_srp.lab.commands.report.finished", fails)
    assert main(["report", os.fspath(tmp_path)], set_up_cores=False) == 2
    assert capsys.readouterr().err.count("\n") == 1
