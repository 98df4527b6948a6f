"""Inputs that never end, or are larger than the memory: refused in one line, and not waited for."""

import os

import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.clocks.traces import read_availability, read_devices, read_times
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


def har(path):
    """Return the folder of UCI HAR's layout whose file of features this is."""
    (path.parent / "subject_train.txt").write_text("1\n")
    return path.parent.parent


READ = {
    "x.npz": srp.data.load,
    "train/a.json": lambda path: srp.data.load(leaf(path)),
    "train/X_train.txt": lambda path: srp.data.load(har(path)),
    "train/0.npz": lambda path: srp.data.load(path.parent.parent),
    "photos/ann/cat/1.png": lambda path: srp.data.load(path.parents[2]),
    "raw/train-images-idx3-ubyte": lambda path: srp.data.load(path.parent.parent),
    "parts.csv": srp.data.read_partition,
    "parts.pkl": srp.data.read_partition,
    "grid.toml": points.read,
    "devices.json": read_devices,
    "availability.csv": read_availability,
}


@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
@pytest.mark.parametrize("name", READ)
def test_an_endless_input_is_refused(name, put, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    try:
        put(path)
    except OSError:
        pytest.skip("no files of this size here")
    with refused("not a plain file|too many to read"):
        READ[name](path)


NOT_OPENED = {
    "a.h5": srp.data.load,
    "pair/a_train.h5": lambda path: srp.data.load(pair(path)),
    "times.csv": read_times,
    "times.npy": read_times,
}


def pair(path):
    """Return the folder of TensorFlow Federated's layout whose file for training this is."""
    (path.parent / "a_test.h5").touch()
    return path.parent


@pytest.mark.parametrize("put", [PUT["pipe"], PUT["device"]], ids=["pipe", "device"])
@pytest.mark.parametrize("name", NOT_OPENED)
def test_what_is_no_file_is_not_opened(name, put, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    put(tmp_path / name)
    with refused("is no file|is none of the layouts"):
        NOT_OPENED[name](tmp_path / name)


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
