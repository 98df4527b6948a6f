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
import re
import runpy
import signal
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fedjax_srp.lab.grids.batches import Unit
from fedjax_srp.lab.grids.work import TaskResult, Worker
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


class GridBar:
    """Progress bar over the rounds of a grid."""

    def __init__(self, units: Sequence[Unit], num_points: int, silent: bool):
        self._points, self._failed = num_points, 0
        self._finished = num_points - sum(len(unit.members) for unit in units)
        self._rounds = dict.fromkeys((unit.id for unit in units), 0)
        self._starts: dict[
            str, float | None
        ] = {}  # running unit -> its start; None once it has completed a round
        total = sum(unit.num_rounds() for unit in units)
        self._bar = tqdm(
            total=total,
            desc=self._description(),
            bar_format=_BAR_FORMAT,
            disable=silent,
            miniters=0,
        )

    def update(self, unit: Unit, rounds: int) -> None:
        """Show the number of completed rounds of a unit: 0 as it starts, from when it counts as compiling."""
        before = self._rounds.get(unit.id, 0)
        if not rounds:
            self._starts[unit.id] = time.monotonic()
            self._bar.set_description_str(self._description())
        if rounds > before and (start := self._starts.get(unit.id)) is not None:
            self._bar.waited += (time.monotonic() - start) / len(self._starts)
            self._starts[unit.id] = None
            self._bar.set_description_str(self._description(), refresh=False)
        self._rounds[unit.id] = max(rounds, before)
        self._bar.update(self._rounds[unit.id] - before)

    def stop(self, unit: Unit) -> None:
        """Count a unit as no longer running."""
        self._starts.pop(unit.id, None)
        self._bar.set_description_str(self._description())

    def finish(self, unit: Unit, has_failed: bool) -> None:
        """Count the runs of a unit as finished, or as failed after the last retry."""
        if has_failed:
            self._failed += len(unit.members)
        else:
            self._finished += len(unit.members)
            self.update(unit, unit.num_rounds())
        self._bar.set_description_str(self._description())

    def tick(self) -> None:
        """Show the time that has passed."""
        self._bar.update(0)

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            tqdm.write(printable(line), file=sys.stderr)

    def _description(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        compiling = sum(start is not None for start in self._starts.values())
        return f"{self._finished} of {self._points} runs{failed}" + (
            f", {compiling} compiling" if compiling else ""
        )

    def close(self) -> None:
        """Close the bar without completing it."""
        self._bar.close()


class Launcher:
    """Runs units in this process, one at a time; a subclass runs them elsewhere."""

    def __init__(self, bar: GridBar):
        self.bar, self._worker = bar, Worker()
        self._started: list[tuple[str, Unit]] = []

    def earlier_jobs(self, units: Sequence[Unit]) -> set[str]:
        """Return the ids of units that jobs of an earlier call still run."""
        return set()

    def start(self, task: str, unit: Unit) -> bool:
        """Start a task of `Worker` on a unit; return False if no worker is free."""
        if self._started:
            return False
        self._started.append((task, unit))
        self.bar.update(unit, 0)
        return True

    def results(self) -> list[tuple[Unit, TaskResult]]:
        """Wait until a running unit has news, or for a moment, and return the units that ended."""
        task, unit = self._started.pop()
        return [
            (
                unit,
                self._worker.perform(
                    task, unit, functools.partial(self.bar.update, unit)
                ),
            )
        ]

    def close(self) -> None:
        """Stop all running units."""


def perform(
    task: str, units: Sequence[Unit], launcher: Launcher, retries: int
) -> Iterator[tuple[Unit, TaskResult]]:
    """Run units and yield each with its result; failed ones are retried after all others, `retries` times."""
    earlier, tries = launcher.earlier_jobs(units), Counter[str]()
    num_running, waiting = (
        len(earlier),
        deque(unit for unit in units if unit.id not in earlier),
    )
    held_elsewhere: list[Unit] = []
    while waiting or num_running or held_elsewhere:
        launcher.bar.tick()
        while waiting and launcher.start(task, waiting[0]):
            waiting.popleft()
            num_running += 1
        if held_elsewhere and not num_running and not waiting:
            time.sleep(_POLL_OTHERS)
            waiting, held_elsewhere = deque(held_elsewhere), []
            continue
        for unit, result in launcher.results():
            num_running -= 1
            launcher.bar.stop(unit)
            if result.is_held_elsewhere:
                held_elsewhere.append(unit)
            elif result.error is not None and tries[unit.id] < retries:
                tries[unit.id] += 1
                waiting.append(unit)
                launcher.bar.write(
                    f"will be tried again: {unit.members[0].point.name}: {result.error}"
                )
            else:
                launcher.bar.finish(unit, result.error is not None)
                yield unit, result


def gpus() -> list[str]:
    """Return CUDA's names of the GPUs that JAX can use, without asking JAX, which would allocate their memory."""
    if not any(
        importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)
    ):
        return []
    if (os.environ.get("JAX_PLATFORMS") or "cuda").split(",")[0] not in ("cuda", "gpu"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # as CUDA reads it: what is no GPU, such as -1, ends the list
        return [*itertools.takewhile(_GPU.match, map(str.strip, visible.split(",")))]
    return [
        str(index)
        for index in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))
    ]


def cores() -> list[int]:
    """Return the cores that this process may run on."""
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def core_shares(num_workers: int) -> list[list[int]]:
    """Divide the cores among workers; if there are fewer cores, workers share them."""
    available = cores()
    return [
        available[i::num_workers] or [available[i % len(available)]]
        for i in range(num_workers)
    ]


def devices_per_worker(num_workers: int) -> int:
    """Return the least number of devices of a worker: one GPU, or its cores."""
    return 1 if gpus() else min(map(len, core_shares(num_workers)))


@dataclasses.dataclass
class _Slot:
    """Place of a worker process, which starts with its first unit, and again after a kill."""

    cores: Sequence[int]
    gpu: str | None
    log: Path
    process: Any = None
    connection: Any = None
    unit: Unit | None = None  # that it runs


class ProcessLauncher(Launcher):
    """Runs units in worker processes of this machine, each with a share of the cores, and a GPU if there are some.

    Workers start when they are needed, and end with this process, however it ends.

    Args:
        num_workers: it decides the number of cores of a worker, and so the last bits of results.
        log: folder for the output of workers.
        units: to be run.
        bar: progress bar.
    """

    def __init__(self, num_workers: int, log: Path, units: Sequence[Unit], bar: GridBar):
        self.bar = bar
        log.mkdir(parents=True, exist_ok=True)
        for link in filter(Path.is_symlink, log.glob("worker_*.log")):
            link.unlink()  # workers would write to its target
        self._units, names = _pickle_units(units), gpus()
        self._slots = [
            _Slot(
                share, names[i % len(names)] if names else None, log / f"worker_{i}.log"
            )
            for i, share in enumerate(core_shares(num_workers))
        ]

    def start(self, task: str, unit: Unit) -> bool:
        """See `Launcher`."""
        slot = next((slot for slot in self._slots if slot.unit is None), None)
        if slot is None:
            return False
        if slot.process is None or not slot.process.is_alive():
            slot.connection, of_process = _SPAWN.Pipe()
            script = _script() if b"__main__" in self._units else None
            given = of_process, self._units, script, slot.cores, slot.gpu, slot.log
            slot.process = _SPAWN.Process(target=_work, args=given)
            with _isolated_main():
                slot.process.start()
            of_process.close()  # so that its end is that of the process
        slot.unit = unit
        with contextlib.suppress(
            BrokenPipeError
        ):  # it was killed just now, as `results` will see
            slot.connection.send((task, unit.id))
        self.bar.update(unit, 0)
        return True

    def results(self) -> list[tuple[Unit, TaskResult]]:
        """See `Launcher`."""
        busy, found = (
            {
                slot.connection: (slot, slot.unit)
                for slot in self._slots
                if slot.unit is not None
            },
            [],
        )
        for slot, unit in (
            busy[connection] for connection in wait([*busy], _POLL_WORKERS)
        ):
            try:
                message = slot.connection.recv()  # its completed rounds, or the result
            except (EOFError, OSError):
                slot.process.join()
                code = slot.process.exitcode
                status = f"exit code {code}" if code >= 0 else f"signal {-code}"
                hint = ", as when memory is short" if code == -signal.SIGKILL else ""
                message = TaskResult(
                    f"its process ended with {status}{hint}; see {slot.log}"
                )
            if isinstance(message, TaskResult):
                slot.unit = None
                found.append((unit, message))
            else:
                self.bar.update(unit, message)
        return found

    def close(self) -> None:
        """See `Launcher`."""
        for process in (slot.process for slot in self._slots):
            if process is not None and process.is_alive():  # not if it could not start
                process.kill()
                process.join()


def _script() -> tuple[str, bool] | None:
    """Return the user's script, and True if it is a module, run by `python -m`; None without a file of it."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # that of a folder or an archive
        return spec.name, True
    file = getattr(main, "__file__", None)  # "<stdin>" is none
    return None if file is None or not Path(file).is_file() else (file, False)


def _pickle_units(units: Sequence[Unit]) -> bytes:
    try:
        pickled = pickle.dumps({unit.id: unit for unit in units})
        _check_names(units, pickled)
        if b"__main__" not in pickled or _script() is not None:
            return pickled
        reason = "it is defined in a notebook, at a prompt or on stdin"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
    raise ValueError(
        f"workers: a value of this grid cannot be sent to a process ({short(reason)}); give workers=0, or define it in "
        "a Python file that is imported, or registered by load"
    )


def _check_names(units: Sequence[Unit], pickled: bytes) -> None:
    """Refuse names that were registered in modules that workers do not import, neither by `load` nor for an object."""
    own: dict[str, Mapping[str, Callable[..., Any]]] = {
        "method": {name: row.factory for name, row in RECIPES.own().items()},
        "participation": POLICIES.own(),
    }
    runs = [
        member.point.run
        for unit in units
        for member in unit.members
        if not member.point.run.load
    ]
    for kind, name in ((kind, getattr(run, kind)) for run in runs for kind in own):
        maker = own[kind].get(name) if isinstance(name, str) else None
        if (
            maker is not None
            and without_partial(inspect.unwrap(maker)).__module__.encode() not in pickled
        ):
            raise ValueError(
                f"workers: {kind}={name!r} is registered in this process only; register it in a Python file and name "
                "that under options, load=[file], or give workers=0"
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
    """Perform the tasks that come from the parent process, with the output in a log; JAX is not set up before.

    The user's script is run, as a module that is not `__main__`, only if units need its definitions.
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
        main = types.ModuleType("__mp_main__")
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        name, is_module = script
        run = runpy.run_module if is_module else runpy.run_path
        vars(main).update(run(name, run_name="__mp_main__"))
    worker, unit_of = Worker(), pickle.loads(units)
    with contextlib.suppress(EOFError):  # the parent has ended
        while True:
            task, unit = connection.recv()
            connection.send(worker.perform(task, unit_of[unit], connection.send))


def _exit_with_parent() -> None:
    """Exit when the parent does; this is safe at any time, since files are replaced atomically."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)
