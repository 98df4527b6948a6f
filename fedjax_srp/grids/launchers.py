"""Where units run: in this process, or in worker processes of this machine that share its cores or have a GPU each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from fedjax_srp import stored
from fedjax_srp.commands.errors import is_ours
from fedjax_srp.grids.units import Unit
from fedjax_srp.grids.work import Worker

ERROR = "error.txt"  # in the folder that a unit's points share


class Rounds(NamedTuple):
    """How many rounds the points of a unit have completed, all together."""

    unit: Unit
    completed: int


class Done(NamedTuple):
    """A unit has ended."""

    unit: Unit
    error: str | None  # in one line
    is_elsewhere: bool = False  # another process is running it
    result: Any = None


Event = Rounds | Done


class Launcher(Protocol):
    """Runs units."""

    def has_room(self) -> bool:
        """Whether another unit may be started."""
        ...

    def start(self, task: str, unit: Unit) -> None:
        """Starts what `Worker` calls so, "run" or "measure"."""
        ...

    def next(self) -> Event:
        """Waits for news of what was started."""
        ...

    def close(self) -> None:
        """Ends everything that runs."""
        ...


def perform(worker: Worker, task: str, unit: Unit, tell: Any) -> Done:
    """Does a task; what goes wrong is one line, with a traceback in the unit's folder where it is a bug."""
    try:
        result = worker.run(unit, tell) if task == "run" else worker.measure(unit)
    except Exception as error:
        full = stored.as_full_disk(error, unit.shared)
        line = " ".join(str(error if full is None else full.strerror).split())
        if full is None and not is_ours(error):
            line = f"{type(error).__name__}: {line}"
            with contextlib.suppress(OSError):
                unit.shared.mkdir(parents=True, exist_ok=True)
                (unit.shared / ERROR).write_text(traceback.format_exc(), "utf-8")
                line = f"{line[:300]}; see {unit.shared / ERROR}"
        return Done(unit, line, isinstance(error, stored.HeldError))
    return Done(unit, None, result=result)


class InProcess:
    """Runs units here, one at a time."""

    def __init__(self, tell: Any):
        self._tell, self._worker, self._started = tell, Worker(), list[tuple[str, Unit]]()

    def has_room(self) -> bool:
        """See `Launcher`."""
        return not self._started

    def start(self, task: str, unit: Unit) -> None:
        """See `Launcher`."""
        self._started.append((task, unit))

    def next(self) -> Event:
        """See `Launcher`."""
        task, unit = self._started.pop()
        return perform(self._worker, task, unit, lambda count: self._tell(Rounds(unit, count)))

    def close(self) -> None:
        """See `Launcher`."""


def gpus() -> list[str]:
    """The GPUs that JAX can use here, as CUDA names them; without asking JAX, which would take their memory."""
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
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def shares(number: int) -> list[list[int]]:
    """The cores that each of so many workers may run on."""
    mine = cores()
    return [mine[place::number] or [mine[place % len(mine)]] for place in range(number)]


def devices_of(number: int) -> int:
    """How many devices each of so many workers has at least: its GPU, or its cores."""
    return 1 if gpus() else min(map(len, shares(number)))


class _Process:
    """A worker process, and the unit that it is at."""

    def __init__(self, place: int, cores: Sequence[int], gpu: str | None, log: Path, events: queue.Queue[Any]):
        self._place, self._cores, self._gpu, self._log, self._events = place, cores, gpu, log, events
        self.unit: Unit | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, task: str, unit: Unit) -> None:
        """Hands it a unit; begins the process where there is none."""
        self.unit = unit
        if self._process is None:
            self._process = self._begin()
        to = cast("IO[bytes]", self._process.stdin)
        with contextlib.suppress(OSError):  # it has ended, which the thread that reads its answers says
            pickle.dump((task, unit), to)
            to.flush()

    def _begin(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self._gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpu
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "fedjax_srp.grids.worker", ",".join(map(str, self._cores))]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=environment)
        threading.Thread(target=self._read, args=(process,), name=f"worker {self._place}", daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        with cast("IO[bytes]", process.stdout) as answers, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                self._events.put((self, pickle.load(answers)))
        self._events.put((self, f"its process ended with {_ending(process.wait())}; see {self._log}"))

    def has_ended(self) -> None:
        """Lets the next unit begin a new process."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                cast("IO[bytes]", self._process.stdin).close()
        self.unit, self._process = None, None

    def close(self) -> None:
        """Ends it as it stands."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.has_ended()


def _ending(code: int) -> str:
    return f"signal {-code}" + (", as when memory is short" if code == -9 else "") if code < 0 else f"exit code {code}"


class Processes:
    """Worker processes of this machine: each has its share of the cores, and its GPU where there are some.

    They begin when they are needed, and end with this process, however it ends.

    Args:
        number: of workers. It decides how many cores each of them has, and so what results are to the last bit.
        log: folder of what they print.
    """

    def __init__(self, number: int, log: Path):
        log.mkdir(parents=True, exist_ok=True)
        self._events: queue.Queue[tuple[_Process, Any]] = queue.Queue()
        names = gpus()
        self._processes = [
            _Process(
                place,
                share,
                names[place % len(names)] if names else None,
                log / f"worker_{place}.log",
                self._events,
            )
            for place, share in enumerate(shares(number))
        ]

    def has_room(self) -> bool:
        """See `Launcher`."""
        return any(process.unit is None for process in self._processes)

    def start(self, task: str, unit: Unit) -> None:
        """See `Launcher`."""
        next(process for process in self._processes if process.unit is None).start(task, unit)

    def next(self) -> Event:
        """See `Launcher`."""
        while True:
            process, news = self._events.get()
            unit = process.unit
            if isinstance(news, str):  # the process has ended
                process.has_ended()
                if unit is not None:
                    return Done(unit, news)
            elif unit is not None:
                if isinstance(news, int):
                    return Rounds(unit, news)
                process.unit = None
                return Done(unit, *news)

    def close(self) -> None:
        """See `Launcher`."""
        for process in self._processes:
            process.close()
