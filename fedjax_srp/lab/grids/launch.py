"""Execution of units with retries, in this process or in worker processes of this machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from fedjax_srp.lab.grids.work import TaskResult, Work, Worker, packed, unpacked
from fedjax_srp.parts.checks import printable
from fedjax_srp.results.bars import tqdm
from fedjax_srp.xla.cores import cores, use_all_cores
from fedjax_srp.xla.disk_cache import cache_programs

_BAR_FORMAT = "{desc}: {n_fmt} of {total_fmt} {unit} |{bar}| {elapsed}<{remaining}"
_POLL_WORKERS = 0.5  # seconds between updates of the bar
_POLL_OTHERS = 1.0  # seconds between tries of units that another process is running
# no warning of semaphores that a grid left behind when it was killed: they are removed
_QUIET = "ignore::UserWarning:multiprocessing.resource_tracker"
_GPU = re.compile(r"\d|GPU-|MIG-")
# Windows cannot keep Ctrl-C from one process alone
HAS_WORKERS = hasattr(signal, "pthread_sigmask")


class GridBar(tqdm):
    """Progress bar over the rounds of a grid."""

    def __init__(
        self, units: Sequence[Work], num_points: int, silent: bool, called: str = "runs"
    ):
        self._called = called
        self._num_points = num_points
        self._num_finished = num_points - sum(len(unit.names) for unit in units)
        self._num_failed = 0
        self._rounds = Counter[str]()  # unit id -> its completed rounds
        super().__init__(
            total=sum(unit.num_rounds() for unit in units),
            desc=self.description(),
            bar_format=_BAR_FORMAT,
            unit="rounds" if called == "runs" else called,
            disable=silent,
            miniters=0,
        )

    def show(self, unit: Work, rounds: int) -> None:
        """Show the completed rounds of a unit; after a restart, once there are more than before."""
        new = max(0, rounds - self._rounds[unit.id])
        self._rounds[unit.id] += new
        self.update(new)

    def finish(self, unit: Work, has_failed: bool) -> None:
        """Count the runs of a unit as finished, or as failed after the last retry."""
        if has_failed:
            self._num_failed += len(unit.names)
        else:
            self._num_finished += len(unit.names)
            self.show(unit, unit.num_rounds())
        self.set_description_str(self.description())

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not self.disable:
            self.write(printable(line), file=sys.stderr)

    def description(self) -> str:
        """Count the finished and the failed runs."""
        text = f"{self._num_finished} of {self._num_points} {self._called}"
        if self._num_failed:
            text += f", {self._num_failed} failed"
        return text


class Launcher:
    """Runs units in this process, one at a time; a subclass runs them elsewhere."""

    def __init__(self, bar: GridBar):
        self.bar = bar
        self._worker = Worker()
        self._started: list[tuple[str, Work]] = []

    def earlier_jobs(self, units: Sequence[Work]) -> set[str]:
        """Return the ids of units that jobs of an earlier call still run."""
        return set()

    def start(self, task: str, unit: Work) -> bool:
        """Start a task of `Worker` on a unit; return False if no worker is free."""
        if self._started:
            return False
        self._started.append((task, unit))
        return True

    def results(self) -> list[tuple[Work, TaskResult]]:
        """Wait until a running unit has news, or for a moment, and return the units that ended."""
        task, unit = self._started.pop()
        show = functools.partial(self.bar.show, unit)
        return [(unit, self._worker.perform(task, unit, show))]

    def close(self) -> None:
        """Stop all running units."""


def perform(
    task: str, units: Sequence[Work], launcher: Launcher, retries: int
) -> Iterator[tuple[Work, TaskResult]]:
    """Run units and yield each with its result.

    Failed units are tried again after all others, `retries` times; those that another process
    runs are tried until it has ended.
    """
    earlier = launcher.earlier_jobs(units)
    num_running = len(earlier)
    waiting = deque(unit for unit in units if unit.id not in earlier)
    num_failures = Counter[str]()
    while waiting or num_running:
        launcher.bar.update(0)  # shows the time
        while waiting and launcher.start(task, waiting[0]):
            waiting.popleft()
            num_running += 1
        for unit, result in launcher.results():
            num_running -= 1
            if result.is_held_elsewhere:
                time.sleep(_POLL_OTHERS)
                waiting.append(unit)
                continue
            has_failed = result.error is not None
            num_failures[unit.id] += has_failed
            if has_failed and num_failures[unit.id] <= retries:
                waiting.append(unit)
                name = unit.names[0]
                launcher.bar.say(f"will be tried again: {name}: {result.error}")
            else:
                launcher.bar.finish(unit, has_failed)
                yield unit, result


def gpus() -> list[str]:
    """Return CUDA's names of the GPUs that JAX can use.

    JAX is not asked, since it would allocate their memory.
    """
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(map(importlib.util.find_spec, plugins)):
        return []
    first_platform = (os.environ.get("JAX_PLATFORMS") or "cuda").split(",")[0]
    if first_platform not in ("cuda", "gpu"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        num_gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        return list(map(str, range(num_gpus)))
    # as CUDA reads it: what is no GPU, such as -1, ends the list
    return list(itertools.takewhile(_GPU.match, map(str.strip, visible.split(","))))


def core_shares(num_workers: int) -> list[list[int]]:
    """Divide the cores among workers; if there are fewer cores, workers share them."""
    available = cores()
    shares = []
    for i in range(num_workers):
        shared = [available[i % len(available)]]
        shares.append(available[i::num_workers] or shared)
    return shares


def devices_per_worker(num_workers: int) -> int:
    """Return the least number of devices of a worker: one GPU, or its cores."""
    if gpus():
        return 1
    return min(map(len, core_shares(num_workers)))


class _Slot:
    """Place of a worker: a pool of one process, which starts with its first unit, and again after a kill.

    Attributes:
        unit: that it runs; None if it is free.
        rounds: completed rounds of the unit, which the worker writes.
    """

    def __init__(
        self, cores: Sequence[int], gpu: str | None, log: Path, units: bytes
    ) -> None:
        self.unit: Work | None = None
        self.future: Future[TaskResult] = Future()
        self._processes = _OneProcess()
        self.rounds = self._processes.RawValue("q")
        self.cores = cores
        self.gpu = gpu
        self._log = log
        self._arguments = (cores, gpu, log, units, self.rounds)
        self._pool: ProcessPoolExecutor | None = None

    def start(self, task: str, unit: Work) -> None:
        """Give the worker a task on a unit."""
        self.unit = unit
        self.rounds.value = 0
        with _isolated_main():
            try:
                self.future = self._submit(task, unit)
            except BrokenProcessPool:  # killed while it had nothing to do
                self.close()
                self.future = self._submit(task, unit)

    def _submit(self, task: str, unit: Work) -> Future[TaskResult]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, self._processes, _set_up, self._arguments)
        return self._pool.submit(_perform_here, task, unit.id)

    def result(self) -> TaskResult:
        """Return the result of its unit, and be free for another one."""
        self.unit = None
        try:
            return self.future.result()
        except BrokenProcessPool:
            self.close()
        code = self._processes.last.exitcode
        status = f"exit code {code}"
        if code < 0:
            status = f"signal {-code}"
        if code == -signal.SIGKILL:
            status += ", as when memory is short"
        return TaskResult(f"its process ended with {status}; see {self._log}")

    def close(self) -> None:
        """End the process."""
        if self._pool is None:
            return
        process = self._processes.last
        if process is not None and process.is_alive():
            process.kill()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None


class _OneProcess(SpawnContext):
    """Starts the process of a pool, and keeps it.

    Attributes:
        last: the process that was started last.
    """

    last: Any = None

    def Process(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # noqa: N802
        self.last = super().Process(*args, **options)
        return self.last


class ProcessLauncher(Launcher):
    """Runs units in worker processes of this machine.

    Each has a share of the cores, and a GPU if there are some. Workers start when they are needed,
    and end with this process, however it ends.

    Args:
        num_workers: decides the number of cores of a worker, and so the last bits of results.
        log: folder for the output of workers.
        units: to be run.
        bar: progress bar.
    """

    def __init__(self, num_workers: int, log: Path, units: Sequence[Work], bar: GridBar):
        self.bar = bar
        log.mkdir(parents=True, exist_ok=True)
        for link in filter(Path.is_symlink, log.glob("worker_*.log")):
            link.unlink()  # workers would write to its target
        pickled = packed(units)
        self._slots: list[_Slot] = []
        names = itertools.cycle(gpus() or [None])
        for i, (share, gpu) in enumerate(zip(core_shares(num_workers), names)):  # noqa: B905
            self._slots.append(_Slot(share, gpu, log / f"worker_{i}.log", pickled))

    @override
    def start(self, task: str, unit: Work) -> bool:
        for slot in self._slots:
            if slot.unit is None:
                slot.start(task, unit)
                return True
        return False

    @override
    def results(self) -> list[tuple[Work, TaskResult]]:
        ended = []
        busy = [slot for slot in self._slots if slot.unit is not None]
        futures.wait([slot.future for slot in busy], _POLL_WORKERS, "FIRST_COMPLETED")
        for slot in busy:
            unit = slot.unit
            assert unit is not None
            self.bar.show(unit, slot.rounds.value)
            if slot.future.done():
                ended.append((unit, slot.result()))
        return ended

    @override
    def close(self) -> None:
        for slot in self._slots:
            slot.close()


@contextlib.contextmanager
def _isolated_main() -> Iterator[None]:
    """Make processes that start here ignore Ctrl-C, and not run the user's script."""
    main = sys.modules["__main__"]
    if _QUIET not in sys.warnoptions:
        sys.warnoptions.append(_QUIET)  # for the tracker, which starts here
    resource_tracker.ensure_running()  # a process of its own, which would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_up(
    cores: Sequence[int], gpu: str | None, log: Path, units: bytes, rounds: Any
) -> None:
    """Set up this process as a worker, with its output in a log; JAX is not set up before."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    use_all_cores(len(cores))
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache_programs()  # checks once more who can write to the folder
    global _here
    _here = _Here(Worker(), unpacked(units), rounds)


class _Here(NamedTuple):
    """State of a worker process."""

    worker: Worker
    units: dict[str, Work]  # by id
    rounds: Any  # of `_Slot`


_here: _Here | None = None


def _perform_here(task: str, unit: str) -> TaskResult:
    """Perform a task on a unit in a process that `_set_up` has made a worker."""
    assert _here is not None
    show = functools.partial(setattr, _here.rounds, "value")
    return _here.worker.perform(task, _here.units[unit], show)


def _exit_with_parent() -> None:
    """Exit when the parent does; this is safe at any time, since files are replaced atomically."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)
