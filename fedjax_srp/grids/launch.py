"""Units are run: in turn, past failures, in this process or in others of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import pickle
import runpy
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from fedjax_srp._checks import short
from fedjax_srp.bars import tqdm
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.grids.units import Unit
from fedjax_srp.grids.work import Done, Worker

_SHAPE = "{desc}: {n_fmt} of {total_fmt} rounds |{bar}| {elapsed}<{remaining}"
_PAUSE = 0.5  # seconds between two looks at how far workers are
_WAIT = 1.0  # seconds, until what another process runs is looked at again
_SPAWN = multiprocessing.get_context("spawn")


class Bar:
    """How far the whole grid is."""

    def __init__(self, units: Sequence[Unit], num_points: int, silent: bool):
        self._points, self._failed = num_points, 0
        self._finished = num_points - sum(len(unit.members) for unit in units)
        self._rounds = dict.fromkeys((unit.id for unit in units), 0)
        self._starts: dict[str, float | None] = {}  # of units that run here; None once they have completed rounds
        total = sum(unit.num_rounds() for unit in units)
        self._bar = tqdm(total=total, desc=self._words(), bar_format=_SHAPE, disable=silent)

    def begins(self, unit: Unit) -> None:
        """Show that a unit is compiled, as long as it has no rounds to tell."""
        self._starts[unit.id] = time.monotonic()
        self._bar.set_description_str(self._words())

    def tell(self, unit: Unit, rounds: int) -> None:
        """Show how many rounds of a unit are completed."""
        before = self._rounds.get(unit.id, 0)
        if rounds > before and (start := self._starts.get(unit.id)) is not None:
            self._bar.waited += (time.monotonic() - start) / len(self._starts)
            self._starts[unit.id] = None
            self._bar.set_description_str(self._words(), refresh=False)
        self._rounds[unit.id] = max(rounds, before)
        self._bar.update(self._rounds[unit.id] - before)

    def ends(self, unit: Unit, has_failed: bool) -> None:
        """Count the runs of a unit that is not tried again."""
        self._starts.pop(unit.id, None)
        if has_failed:
            self._failed += len(unit.members)
        else:
            self._finished += len(unit.members)
            self.tell(unit, unit.num_rounds())
        self._bar.set_description_str(self._words())

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            tqdm.write(line, file=sys.stderr)

    def _words(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        compiling = sum(start is not None for start in self._starts.values())
        return f"{self._finished} of {self._points} runs{failed}" + (f", {compiling} compiling" if compiling else "")

    def close(self) -> None:
        """Leave it as it stands."""
        self._bar.close()


class Launcher:
    """Runs units in this process, one at a time; a subclass runs them elsewhere."""

    def __init__(self, bar: Bar | None = None):
        self._worker, self._unit, self._bar = Worker(), "", Bar([], 0, silent=True) if bar is None else bar

    def earlier(self, units: Sequence[Unit]) -> dict[str, Any]:
        """Return the futures of what an earlier call started and still runs, by id of the unit."""
        del units
        return {}

    def start(self, task: str, unit: Unit) -> Any:
        """Start a task of `Worker` on a unit and return its future; None where there is no room for it now."""
        if self._unit:
            return None
        self._unit = unit.id
        self._bar.begins(unit)
        future: Future[Done] = Future()
        future.set_result(self._worker.perform(task, unit, lambda rounds: self._bar.tell(unit, rounds)))
        return future

    def wait(self, futures: Sequence[Any]) -> None:
        """Wait a moment, or until one of several futures is done."""

    def rounds(self, unit: Unit) -> int:
        """Return how many rounds a unit that runs has completed, as far as is known here."""
        del unit
        return 0

    def ended(self, unit: Unit, future: Any) -> Done:
        """Return what became of a unit whose future is done."""
        del unit
        self._unit = ""
        return future.result()

    def close(self) -> None:
        """End everything that runs."""


def perform(
    task: str, units: Sequence[Unit], launcher: Launcher, bar: Bar, retries: int
) -> Iterator[tuple[Unit, Done]]:
    """Run units and yield what became of each in the end; what fails is tried again after all others, so many times."""
    tries, futures = dict.fromkeys((unit.id for unit in units), 0), launcher.earlier(units)
    running = {unit.id: unit for unit in units if unit.id in futures}
    waiting = deque(unit for unit in units if unit.id not in running)
    elsewhere: list[Unit] = []
    while waiting or running or elsewhere:
        while waiting and (future := launcher.start(task, waiting[0])) is not None:
            unit = waiting.popleft()
            running[unit.id], futures[unit.id] = unit, future
        if elsewhere and not running and not waiting:  # others have the rest
            time.sleep(_WAIT)
            waiting, elsewhere = deque(elsewhere), []
            continue
        launcher.wait([futures[name] for name in running])
        for unit in [*running.values()]:
            bar.tell(unit, launcher.rounds(unit))
            if not futures[unit.id].done():
                continue
            del running[unit.id]
            done = launcher.ended(unit, futures[unit.id])
            if done.is_elsewhere:
                elsewhere.append(unit)
            elif done.error is not None and tries[unit.id] < retries:
                tries[unit.id] += 1
                waiting.append(unit)
                bar.say(f"again later: {unit.members[0].point.name}: {done.error}")
            else:
                bar.ends(unit, done.error is not None)
                yield unit, done


def gpus() -> list[str]:
    """Return the GPUs that JAX can use here, as CUDA names them; without asking JAX, which would take their memory."""
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return []
    if os.environ.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    found = Path("/proc/driver/nvidia/gpus")
    return [str(place) for place in range(len(list(found.glob("*"))))]


def cores() -> list[int]:
    """Return the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def shares(number: int) -> list[list[int]]:
    """Return the cores that each of so many workers may run on."""
    mine = cores()
    return [mine[place::number] or [mine[place % len(mine)]] for place in range(number)]


def devices_of(number: int) -> int:
    """Return how many devices each of so many workers has at least: its GPU, or its cores."""
    return 1 if gpus() else min(map(len, shares(number)))


class _Seat:
    """A pool of one process, so that a kill costs one unit; another process takes its place."""

    def __init__(self, cores: Sequence[int], gpu: str | None, log: Path, units: bytes):
        self.cores, self.gpu, self.log, self._units = cores, gpu, log, units
        self.rounds = _SPAWN.RawValue("q", 0)
        self.unit, self._pool = "", None
        self.process: Any = None

    def start(self, task: str, unit: Unit) -> Future[Done]:
        """Hand it a unit; begin the process where there is none."""
        self.unit, self.rounds.value = unit.id, 0
        if self._pool is not None:
            with contextlib.suppress(BrokenProcessPool):  # it was killed while it had nothing to do
                return self._pool.submit(_perform, task, unit.id)
            self.close()
        script = getattr(sys.modules["__main__"], "__file__", None) if b"__main__" in self._units else None
        given = (self.cores, self.gpu, self.log, self._units, self.rounds, script)
        self._pool = ProcessPoolExecutor(1, _SPAWN, _begin, given)
        before = {*multiprocessing.active_children()}
        with _alone():
            future = self._pool.submit(_perform, task, unit.id)
        self.process = next(iter({*multiprocessing.active_children()} - before), None)
        return future

    def close(self) -> None:
        """End the process as it stands."""
        if self.process is not None:
            self.process.kill()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


class Processes(Launcher):
    """Worker processes of this machine: each has its share of the cores, and its GPU where there are some.

    They begin when they are needed, and end with this process, however it ends.

    Args:
        number: of workers. It decides how many cores each of them has, and so what results are to the last bit.
        log: folder of what they print.
        units: that they are to run.
        bar: gets to know what begins.
    """

    def __init__(self, number: int, log: Path, units: Sequence[Unit], bar: Bar):
        self._bar = bar
        log.mkdir(parents=True, exist_ok=True)
        for link in filter(Path.is_symlink, log.glob("worker_*.log")):
            link.unlink()  # workers would write where it leads
        names, pickled = gpus(), _pickled(units)
        self._seats = [
            _Seat(share, names[place % len(names)] if names else None, log / f"worker_{place}.log", pickled)
            for place, share in enumerate(shares(number))
        ]

    def start(self, task: str, unit: Unit) -> Future[Done] | None:
        """See `Launcher`."""
        free = next((seat for seat in self._seats if not seat.unit), None)
        if free is None:
            return None
        self._bar.begins(unit)
        return free.start(task, unit)

    def wait(self, futures: Sequence[Future[Done]]) -> None:
        """See `Launcher`."""
        wait(futures, _PAUSE, FIRST_COMPLETED)

    def ended(self, unit: Unit, future: Future[Done]) -> Done:
        """See `Launcher`."""
        seat = self._seat(unit)
        seat.unit = ""
        try:
            return future.result()
        except BrokenProcessPool:
            seat.close()
            code = None if seat.process is None else seat.process.exitcode
            how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
            why = ", as when memory is short" if code == -signal.SIGKILL else ""
            return Done(f"its process ended with {how}{why}; see {seat.log}")

    def rounds(self, unit: Unit) -> int:
        """See `Launcher`."""
        return self._seat(unit).rounds.value

    def _seat(self, unit: Unit) -> _Seat:
        return next(seat for seat in self._seats if seat.unit == unit.id)

    def close(self) -> None:
        """See `Launcher`."""
        for seat in self._seats:
            seat.close()


def _pickled(units: Sequence[Unit]) -> bytes:
    try:
        pickled = pickle.dumps({unit.id: unit for unit in units})
        if b"__main__" not in pickled or hasattr(sys.modules["__main__"], "__file__"):
            return pickled
        why = "it is defined in a notebook or at a prompt"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        why = " ".join(str(error).split())
    raise ValueError(
        f"workers: a value of this grid cannot be sent to a process ({short(why)}); give workers=0, or define it in a "
        "Python file that is imported, or registered by load"
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Processes that begin here leave Ctrl-C to this one, and do not run the user's script before they are set up."""
    main = sys.modules["__main__"]
    resource_tracker.ensure_running()  # a process of its own, which would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_here: dict[str, Any] = {}  # what a worker process has


def _begin(cores: Sequence[int], gpu: str | None, log: Path, units: bytes, rounds: Any, script: str | None) -> None:
    """Sets a worker process up, before it uses JAX; its prints go to its log.

    The user's script is run only for units that need what it defines, behind `if __name__ == "__main__"` nothing of it.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    use_all_cores(len(cores))
    if script is not None:
        main = types.ModuleType("__mp_main__")
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        vars(main).update(runpy.run_path(script, run_name="__mp_main__"))
    _here.update(worker=Worker(), rounds=rounds, units=pickle.loads(units))


def _end_with_parent() -> None:
    """Nobody waits for the result then, and files appear whole or not at all."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)


def _perform(task: str, unit: str) -> Done:
    def tell(rounds: int) -> None:
        _here["rounds"].value = rounds

    return _here["worker"].perform(task, _here["units"][unit], tell)
