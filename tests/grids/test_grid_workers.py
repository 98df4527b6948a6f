"""Workers of a grid: failures, retries and kills; their cores and their bar."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from attacks import killed_grid
from reference import histories
from small_grid import AXES, OPTIONS, grid, planned, toml

from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.grids import launch, work
from fedjax_srp.lab.grids.work import TaskResult, Worker
from fedjax_srp.results.history import History
from fedjax_srp.results.locks import LOCK, held


@pytest.mark.usefixtures("no_rounds")
def test_a_grid_goes_on_past_a_failure(tmp_path, monkeypatch, capsys):
    """The first two tries of one of two runs fail."""
    axes, run, tried = AXES | {"learning_rate": [0.05], "seed": [0, 1]}, Worker.run, []

    def fail(self, unit, tell):
        tried.append(unit.members[0].point.values["seed"])
        if tried[-1] == 0 and tried.count(0) <= 2:
            raise RuntimeError("a\nbug")
        run(self, unit, tell)

    monkeypatch.setattr(Worker, "run", fail)
    found = grid(tmp_path, axes, batch=1, retries=1)
    assert tried == [0, 1, 0]
    (failure,) = found.failures
    assert failure.name == "fedavg, learning_rate=0.05, seed=0"
    assert failure.error.startswith("RuntimeError: a bug; see ")
    assert (
        f"failed: {failure.name}: {failure.error}\n" in capsys.readouterr().err
    )  # tables lack this run
    assert "RuntimeError: a\nbug" in Path(failure.error.partition("see ")[2]).read_text()
    assert list(found.folders) == ["fedavg, learning_rate=0.05, seed=1"]
    again = grid(tmp_path, axes, batch=1)
    assert tried == [0, 1, 0, 0]
    assert not again.failures
    assert len(again.folders) == 2


class Scripted(launch.Launcher):
    """Launcher with room for two units, which end as given."""

    def __init__(self, bar, *endings):
        self.bar, self.endings, self.running, self.seen = bar, list(endings), [], []

    def start(self, task, unit):
        if len(self.running) == 2:
            return False
        self.running.append(unit)
        self.seen.append(unit.id)
        return True

    def results(self):
        ended, self.running = self.running, []
        endings = [self.endings.pop(0) for _ in ended]
        return [
            (
                unit,
                TaskResult(None if ending == "fine" else ending, ending == "elsewhere"),
            )
            for unit, ending in zip(ended, endings, strict=True)
        ]


def test_failures_are_retried_last_and_units_of_other_processes_are_waited_for(
    tmp_path, monkeypatch
):
    left, seen = planned(tmp_path, {"method": ["fedavg"], "epochs": [1, 2, 3]}), []
    a, b, c = (unit.id for unit in left)
    bar = launch.GridBar(left, 3, silent=True)
    launcher = Scripted(bar, "broken", "elsewhere", "fine", "broken", "elsewhere", "fine")
    ended = launch.perform("run", left, launcher, retries=1)
    monkeypatch.setattr(
        launch.time, "sleep", lambda seconds: seen.append(bar.description())
    )
    assert [(unit.id, done.error) for unit, done in ended] == [
        (c, None),
        (a, "broken"),
        (b, None),
    ]
    assert launcher.seen == [a, b, c, a, b, b]
    assert seen == ["0 of 3 runs", "1 of 3 runs, 1 failed"]


def test_the_bar_counts_rounds_of_all_runs(tmp_path):
    left = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1, 2]})
    bar = launch.GridBar(left, 5, silent=True)
    counts = []
    bar.update = counts.append
    bar.show(left[0], 2)
    bar.show(left[0], 1)  # it began anew
    bar.finish(left[0], has_failed=False)
    bar.finish(left[1], has_failed=True)
    assert counts == [2, 0, 2]  # the second while it catches up
    assert bar.description() == "4 of 5 runs, 1 failed"
    counts.clear()
    call = work._progress_callback(counts.append)
    for seeds, round in (
        (range(2), 3),
        (range(2), 4),
        (range(2, 3), 1),
    ):  # two programs, one after the other
        call(types.SimpleNamespace(seeds=seeds, round=round))
    assert counts == [6, 8, 9]


def test_the_bar_shows_the_time_while_a_worker_compiles(tmp_path):
    left, ticks = planned(tmp_path, {"method": ["fedavg"]}), []
    bar = launch.GridBar(left, 1, silent=True)
    bar.update = ticks.append
    launcher = launch.ProcessLauncher(1, tmp_path, left, bar)
    (slot,) = launcher._slots
    launcher.start = lambda task, unit: setattr(slot, "unit", unit) or True
    result = slot.future.set_result
    threading.Timer(4 * launch._POLL_WORKERS, result, [TaskResult(None)]).start()
    assert len([*launch.perform("run", left, launcher, retries=0)]) == 1
    assert ticks.count(0) > 2


def test_a_unit_that_another_process_runs_is_held_elsewhere(tmp_path):
    (unit, *_) = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]})
    unit.shared.mkdir(parents=True)
    with (unit.shared / LOCK).open("w") as lock:  # as by another process
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = Worker().perform("run", unit, lambda count: None)
    assert done.is_held_elsewhere
    assert "is running here" in str(done.error)


def test_a_unit_that_this_process_holds_is_not_waited_for(tmp_path):
    (unit, *_) = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]})
    with held(unit.shared, "out"):
        done = Worker().perform("run", unit, lambda count: None)
    assert not done.is_held_elsewhere
    assert "is running here" in str(done.error)


def test_a_link_in_the_place_of_a_log_or_an_error_is_not_followed(tmp_path, monkeypatch):
    precious, log = tmp_path / "precious", tmp_path / "log"
    precious.write_text("precious")
    log.mkdir()
    (log / "worker_0.log").symlink_to(precious)
    launch.ProcessLauncher(1, log, (), launch.GridBar([], 0, silent=True))
    assert not os.listdir(log)
    (unit, *_) = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]})
    monkeypatch.setattr(Worker, "run", lambda *_: {}["nothing"])
    unit.shared.mkdir(exist_ok=True, parents=True)
    (unit.shared / "error.txt").symlink_to(precious)
    assert "see" in str(Worker().perform("run", unit, lambda count: None).error)
    assert "KeyError: 'nothing'" in (unit.shared / "error.txt").read_text()
    assert precious.read_text() == "precious"


def test_a_killed_worker_costs_only_its_unit(tmp_path, monkeypatch, capsys):
    """The first of two worker processes is killed as soon as it has a unit; another one takes its place."""
    file = toml(
        tmp_path / "grid.toml",
        OPTIONS | {"num_rounds": 1},
        method=["fedavg"],
        seed=[0, 1, 2],
    )
    processes, start = [], launch.ProcessLauncher.start

    def start_and_kill(self, task, unit):
        begun = start(self, task, unit)
        for slot in self._slots:
            process = slot._processes.last
            if process is not None and process not in processes:
                processes.append(process)
        if unit.members[0].point.run.seed == 0 and len(processes) == 1:
            processes[0].kill()
        return begun

    monkeypatch.setattr(launch.ProcessLauncher, "start", start_and_kill)
    words = [
        "grid",
        file,
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "2",
        "--batch",
        "1",
        "--no-progress",
    ]
    assert cli.main(words, set_up_cores=False) == 2
    printed = capsys.readouterr()
    assert (
        "failed: fedavg, seed=0: its process ended with signal 9, as when memory is short; see"
        in printed.err
    )
    assert "error: 1 runs failed; the same command tries them again" in printed.err
    histories.without_rounds(monkeypatch)  # of this process
    assert cli.main([*words, "--workers", "0"], set_up_cores=False) == 0, (
        capsys.readouterr().err
    )
    assert "3 of 3 runs finished" in capsys.readouterr().out
    assert not any(process.is_alive() for process in processes)  # nobody is left
    assert len(History.load(next((tmp_path / "out").glob("fedavg*"))).accuracy) == 1


def test_the_error_of_a_process_that_cannot_start_is_raised(tmp_path, monkeypatch):
    def start(self):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", start)
    with pytest.raises(BlockingIOError, match="no more processes"):
        grid(tmp_path, AXES, workers=1)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs the affinity of processes"
)
def test_workers_have_disjoint_cores_and_their_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda: [0, 2, 4, 6, 8])
    monkeypatch.setattr(launch, "gpus", lambda: ["3", "5"])
    slots = launch.ProcessLauncher(
        2, tmp_path / "log", (), launch.GridBar([], 0, silent=True)
    )._slots
    assert [(slot.cores, slot.gpu) for slot in slots] == [([0, 4, 8], "3"), ([2, 6], "5")]
    assert launch.devices_per_worker(2) == 1
    monkeypatch.setattr(launch, "gpus", list)
    assert [launch.devices_per_worker(number) for number in (1, 2, 9)] == [5, 2, 1]
    assert [share for (share,) in launch.core_shares(9)] == [0, 2, 4, 6, 8, 0, 2, 4, 6]
    monkeypatch.undo()
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: object() if name == "jax_cuda12_plugin" else None,
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-7")
    for unset in (None, ""):
        monkeypatch.setenv("JAX_PLATFORMS", "") if unset == "" else monkeypatch.delenv(
            "JAX_PLATFORMS", raising=False
        )
        assert launch.gpus() == ["1", "GPU-7"]
    for visible, names in (
        ("-1", []),
        ("0, 3", ["0", "3"]),
        ("0,-1,1", ["0"]),
        ("NoDevFiles", []),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert launch.gpus() == names
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert launch.gpus() == []


@pytest.mark.long
def test_a_grid_that_is_killed_ends_with_the_same_bytes(tmp_path):
    found = killed_grid.attack(6, tmp_path, random.Random(1), num_rounds=8)
    assert found["kills"] >= 6
    assert found["differences"] == found["outlived"] == 0, found
    assert not found["failures"]
    assert os.listdir(tmp_path)


@pytest.mark.long
def test_ctrl_c_ends_a_grid_and_its_workers_with_one_line(tmp_path):
    options = OPTIONS | {"num_rounds": 10**6}
    file = toml(tmp_path / "grid.toml", options, method=["fedavg"], seed=[0, 1])
    handled = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    words = ["grid", file, "--out", str(tmp_path / "out"), "--batch", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", handled + killed_grid.PROGRAM, *words, "--no-progress"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not list((tmp_path / "out").glob("*/checkpoint/[0-9]*")):
        assert process.poll() is None
        time.sleep(0.1)
    workers = killed_grid.workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed.startswith("\nfedjax-srp: interrupted; the same command continues")
    assert printed.count("\n") == 2
    deadline = time.monotonic() + 30
    while any(map(killed_grid.is_worker, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers
    assert not any(map(killed_grid.is_worker, workers))
