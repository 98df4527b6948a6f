"""Execution of units with retries, in this process or in worker processes of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import multiprocessing
import os
import pickle
import pickletools
import re
import runpy
import signal
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedjax_srp.lab.grids.batches import Unit
from fedjax_srp.lab.grids.work import TaskResult, Worker
from fedjax_srp.lab.runs.run import Run
from fedjax_srp.methods import POLICIES, RECIPES
from fedjax_srp.parts.checks import printable, short
from fedjax_srp.parts.options import without_partial
from fedjax_srp.results.bars import tqdm
from fedjax_srp.xla.cores import use_all_cores
from fedjax_srp.xla.disk_cache import cache_programs

_BAR_FORMAT = "{desc}: {n_fmt} of {total_fmt} rounds |{bar}| {elapsed}<{remaining}"
_POLL_WORKERS = 0.5  # seconds between updates of the bar
_POLL_OTHERS = 1.0  # seconds between tries of units that another process is running
_SPAWN = multiprocessing.get_context("spawn")
_GPU = re.compile(r"\d|GPU-|MIG-")


class GridBar(tqdm):
    """Progress bar over the rounds of a grid."""

    def __init__(self, units: Sequence[Unit], num_points: int, silent: bool):
        self._num_points = num_points
        self._num_finished = num_points - sum(len(unit.members) for unit in units)
        self._num_failed = 0
        self._rounds = Counter[str]()  # unit id -> its completed rounds
        super().__init__(
            total=sum(unit.num_rounds() for unit in units),
            desc=self.description(),
            bar_format=_BAR_FORMAT,
            disable=silent,
            miniters=0,
        )

    def show(self, unit: Unit, rounds: int) -> None:
        """Show the completed rounds of a unit; after a restart, once there are more than before."""
        new = max(0, rounds - self._rounds[unit.id])
        self._rounds[unit.id] += new
        self.update(new)

    def finish(self, unit: Unit, has_failed: bool) -> None:
        """Count the runs of a unit as finished, or as failed after the last retry."""
        if has_failed:
            self._num_failed += len(unit.members)
        else:
            self._num_finished += len(unit.members)
            self.show(unit, unit.num_rounds())
        self.set_description_str(self.description())

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not self.disable:
            self.write(printable(line), file=sys.stderr)

    def description(self) -> str:
        """Count the finished and the failed runs."""
        text = f"{self._num_finished} of {self._num_points} runs"
        if self._num_failed:
            text += f", {self._num_failed} failed"
        return text


class Launcher:
    """Runs units in this process, one at a time; a subclass runs them elsewhere."""

    def __init__(self, bar: GridBar):
        self.bar = bar
        self._worker = Worker()
        self._started: list[tuple[str, Unit]] = []

    def earlier_jobs(self, units: Sequence[Unit]) -> set[str]:
        """Return the ids of units that jobs of an earlier call still run."""
        return set()

    def start(self, task: str, unit: Unit) -> bool:
        """Start a task of `Worker` on a unit; return False if no worker is free."""
        if self._started:
            return False
        self._started.append((task, unit))
        return True

    def results(self) -> list[tuple[Unit, TaskResult]]:
        """Wait until a running unit has news, or for a moment, and return the units that ended."""
        task, unit = self._started.pop()
        show = functools.partial(self.bar.show, unit)
        return [(unit, self._worker.perform(task, unit, show))]

    def close(self) -> None:
        """Stop all running units."""


def perform(
    task: str, units: Sequence[Unit], launcher: Launcher, retries: int
) -> Iterator[tuple[Unit, TaskResult]]:
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
                name = unit.members[0].point.name
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


def cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


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


@dataclasses.dataclass
class _Slot:
    """Place of a worker process, which starts with its first unit, and again after a kill."""

    cores: Sequence[int]
    gpu: str | None
    log: Path
    process: Any = None
    connection: Any = None
    unit: Unit | None = None  # that it runs

    def is_alive(self) -> bool:
        """Return True if it has a process, which may have failed to start or been killed."""
        return self.process is not None and self.process.is_alive()

    def start(self, units: bytes) -> None:
        """Start the process; it ends with its end of the connection."""
        self.connection, end = _SPAWN.Pipe()
        script = _script() if b"__main__" in units else None
        arguments = (end, units, script, self.cores, self.gpu, self.log)
        self.process = _SPAWN.Process(target=_work, args=arguments)
        with _isolated_main():
            self.process.start()
        end.close()

    def receive(self) -> int | TaskResult:
        """Return the completed rounds of its unit, or the result."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
        code = self.process.exitcode
        status = f"exit code {code}"
        if code < 0:
            status = f"signal {-code}"
        if code == -signal.SIGKILL:
            status += ", as when memory is short"
        return TaskResult(f"its process ended with {status}; see {self.log}")


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

    def __init__(self, num_workers: int, log: Path, units: Sequence[Unit], bar: GridBar):
        self.bar = bar
        log.mkdir(parents=True, exist_ok=True)
        for link in filter(Path.is_symlink, log.glob("worker_*.log")):
            link.unlink()  # workers would write to its target
        self._units = _pickle_units(units)
        self._slots: list[_Slot] = []
        names = itertools.cycle(gpus() or [None])
        for i, (share, gpu) in enumerate(zip(core_shares(num_workers), names)):  # noqa: B905
            self._slots.append(_Slot(share, gpu, log / f"worker_{i}.log"))

    @override
    def start(self, task: str, unit: Unit) -> bool:
        slot = next((slot for slot in self._slots if slot.unit is None), None)
        if slot is None:
            return False
        if not slot.is_alive():
            slot.start(self._units)
        slot.unit = unit
        # a process that was killed just now is noticed by `results`
        with contextlib.suppress(BrokenPipeError):
            slot.connection.send((task, unit.id))
        return True

    @override
    def results(self) -> list[tuple[Unit, TaskResult]]:
        ended = []
        busy = [slot for slot in self._slots if slot.unit is not None]
        ready = wait([slot.connection for slot in busy], _POLL_WORKERS)
        for slot in busy:
            if slot.connection not in ready or slot.unit is None:
                continue
            message = slot.receive()
            if isinstance(message, TaskResult):
                ended.append((slot.unit, message))
                slot.unit = None
            else:
                self.bar.show(slot.unit, message)
        return ended

    @override
    def close(self) -> None:
        for slot in self._slots:
            if slot.is_alive():
                slot.process.kill()
                slot.process.join()


def _script() -> tuple[str, bool] | None:
    """Return the user's script, and True if it is a module, run by `python -m`.

    None without a file: in a notebook, at a prompt and on stdin.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # that of a folder or an archive
        return spec.name, True
    file = getattr(main, "__file__", None)  # "<stdin>" is none
    if file is None or not Path(file).is_file():
        return None
    return file, False


def _pickle_units(units: Sequence[Unit]) -> bytes:
    try:
        pickled = pickle.dumps({unit.id: unit for unit in units})
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_sent(short(" ".join(str(error).split()))) from None
    for unit in units:
        for member in unit.members:
            if not member.point.run.load:
                _check_names(member.point.run, pickled)
    if b"__main__" in pickled and _script() is None:
        raise _not_sent("it is defined in a notebook, at a prompt or on stdin")
    return pickled


def _not_sent(reason: str) -> ValueError:
    return ValueError(
        f"workers: a value of this grid cannot be sent to a process ({reason}); give workers=0, "
        "or define it in a Python file that is imported, or registered by load"
    )


def _check_names(run: Run, pickled: bytes) -> None:
    """Refuse names that were registered in a module that workers do not import for an object."""
    makers: dict[str, Any] = {}
    if isinstance(run.method, str) and run.method in RECIPES.own():
        makers["method"] = RECIPES[run.method].factory
    policy = run.participation
    if isinstance(policy, str) and policy in POLICIES.own():
        makers["participation"] = POLICIES[policy]
    words = {word for _, word, _ in pickletools.genops(pickled)}  # modules among them
    for option, maker in makers.items():
        module = without_partial(inspect.unwrap(maker)).__module__
        if module not in words:
            raise ValueError(
                f"workers: {option}={getattr(run, option)!r} is registered in this process only; "
                "register it in a Python file and name that under options, load=[file], or give "
                "workers=0"
            )


@contextlib.contextmanager
def _isolated_main() -> Iterator[None]:
    """Make processes that start here ignore Ctrl-C, and not run the user's script before `_work`."""
    main = sys.modules["__main__"]
    resource_tracker.ensure_running()  # a process of its own, which would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    connection: Any,
    units: bytes,
    script: tuple[str, bool] | None,
    cores: Sequence[int],
    gpu: str | None,
    log: Path,
) -> None:
    """Perform the tasks that come from the parent process, with the output in a log.

    JAX is not set up before. `script` is given only if units need its definitions.
    """
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
    if script is not None:
        _run_script(*script)
    worker = Worker()
    unit_of = pickle.loads(units)
    with contextlib.suppress(EOFError):  # the parent has ended
        while True:
            task, unit = connection.recv()
            connection.send(worker.perform(task, unit_of[unit], connection.send))


def _run_script(name: str, is_module: bool) -> None:
    """Run the user's script for its definitions, as a module that is not `__main__`."""
    main = types.ModuleType("__mp_main__")
    sys.modules["__main__"] = main
    sys.modules["__mp_main__"] = main
    run = runpy.run_path
    if is_module:
        run = runpy.run_module
    vars(main).update(run(name, run_name="__mp_main__"))


def _exit_with_parent() -> None:
    """Exit when the parent does; this is safe at any time, since files are replaced atomically."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)
