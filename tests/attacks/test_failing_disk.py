"""A sample of `failing_disk.py`, and system errors that need no failing disk."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_history import small

import fedjax_srp as srp
from fedjax_srp.lab.commands.report import report
from fedjax_srp.results.history import History

SCRIPT = Path(__file__).with_name("failing_disk.py")
OFTEN = {
    "save longer": ["--step", "5"],
    "save models over none": ["--step", "15"],
    "load": ["--step", "9"],
    "run of another cost": ["--sites"],
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="it needs a C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="it needs LD_PRELOAD")
@pytest.mark.short("save longer")
@pytest.mark.parametrize("name", OFTEN)
def test_whatever_call_fails_the_old_result_or_the_new_one_is_there(name, tmp_path):
    file = tmp_path / "counts.json"
    words = [os.fspath(file), "--only", name, *OFTEN[name]]
    command = [sys.executable, os.fspath(SCRIPT), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (counts,) = json.loads(file.read_text()).values()
    assert all(sum(outcomes.values()) > 1 for outcomes in counts.values())
    if name != "load":
        assert set(counts) == {"kill", "power", "once", "full"}
        assert {"old", "new"} <= set(counts["once"])


@pytest.fixture
def no_descriptors():
    """Allow no further open file in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)

    def begin():
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))

    yield begin
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


CALLS = {
    "save": lambda folder: small().save(folder / "run"),
    "load": lambda folder: History.load(folder / "run"),
    "report": lambda folder: report(str(folder)),
    "data": lambda folder: srp.data.load(folder / "data.npz"),
    "log": lambda folder: srp.watch.json_lines(folder / "log.jsonl"),
    "grid": lambda folder: srp.grid(folder / "grid.toml", out=folder / "grid"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_too_many_open_files_are_one_line(name, tmp_path, no_descriptors):
    small().save(tmp_path / "run")
    np.savez(tmp_path / "data.npz", x_train=np.ones((2, 3)), y_train=np.zeros(2))
    (tmp_path / "grid.toml").write_text('[axes]\nmethod = ["fedavg"]')
    no_descriptors()
    with pytest.raises((OSError, ValueError), match="Too many open files") as error:
        CALLS[name](tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:Glyph")  # fonts lack letters
def test_a_path_that_is_not_utf_8_is_one_like_any_other(tmp_path):
    folder = tmp_path / os.fsdecode(b"a\xff")
    made = small(server_state={"weights": np.ones(3)})
    loaded = History.load(made.save(folder / "run", models=True))
    np.testing.assert_array_equal(loaded.server_state["weights"], np.ones(3))
    assert "FedRep" in report(str(folder))
    arrays = {}
    rng = np.random.default_rng(0)
    for kind in ("train", "test"):
        arrays[f"x_{kind}"] = rng.random((4, 3), np.float32)
        arrays[f"y_{kind}"] = np.array([0, 1, 0, 1])
        arrays[f"user_{kind}"] = np.array([0, 0, 1, 1])
    np.savez(folder / "data.npz", **arrays)
    assert srp.data.load(folder / "data.npz").num_clients == 2
    srp.watch.json_lines(folder / "log.jsonl")
