"""Units as jobs of Slurm, submitted with submitit; or as processes of its local executor."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_srp import stored
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.grids.launchers import Done, Event, perform
from fedjax_srp.grids.units import Unit
from fedjax_srp.grids.work import Worker

_POLL = 1.0  # seconds
_ENDING = 60.0  # seconds; so long a job that has given its result may still count as one of the user's
_AGAIN = 10.0  # seconds from one refusal to the next try meanwhile
_LINE = 300  # letters of an error
_JOB = "job.json"  # the id of the last job of a unit, in the folder that its points share


class _Submitted(NamedTuple):
    unit: Unit
    job: Any  # of submitit
    is_ours: bool  # else an earlier call submitted it


class Slurm:
    """Submits a job for each unit, as many at once as the scheduler takes; it decides when they run.

    A unit whose job of an earlier call is still in the queue or running waits for that one.

    Args:
        folder: of what submitit writes; on a file system that the nodes share.
        parameters: of `submitit.AutoExecutor.update_parameters`, and `cluster`: "slurm" (the default), "local".
        say: prints a line.

    Raises:
        ValueError: submitit is not installed, or refuses a parameter.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], say: Callable[[str], None]):
        try:
            submitit = importlib.import_module("submitit")
        except ImportError:
            raise ValueError("launcher='slurm': submitit is not installed; pip install submitit") from None
        others = dict(parameters)
        try:
            cluster = others.pop("cluster", "slurm")
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**{"name": "fedjax-srp", **others})
        except (RuntimeError, NameError, TypeError, AssertionError, ValueError) as error:
            raise ValueError(f"launcher='slurm': {' '.join(str(error).split())[:_LINE]}; mend [slurm]") from None
        errors = importlib.import_module("submitit.core.utils")
        self._refusals = (errors.FailedJobError, errors.FailedSubmissionError)
        self._job_of_id = (lambda name: submitit.SlurmJob(folder, name)) if cluster == "slurm" else None
        self._say = say
        self._earlier: list[tuple[str, Unit, Any]] = []  # with the job of an earlier call
        self._waiting: deque[tuple[str, Unit]] = deque()
        self._jobs: list[_Submitted] = []
        self._next_try, self._patience = 0.0, 0.0  # by the clock: when jobs are submitted again, how long in any case
        self._num_told = 0

    def has_room(self) -> bool:
        """See `Launcher`."""
        return True

    def start(self, task: str, unit: Unit) -> None:
        """See `Launcher`."""
        with contextlib.suppress(stored.DamagedError):
            if self._job_of_id is not None:
                self._earlier.append((task, unit, self._job_of_id(stored.read_json(unit.shared / _JOB))))
                return
        self._waiting.append((task, unit))

    def next(self) -> Event:
        """See `Launcher`.

        Raises:
            ValueError: the scheduler refuses a job though none of this grid is left that could make room.
        """
        while True:
            self._find()
            self._submit()
            for place, (unit, submitted, is_ours) in enumerate(self._jobs):
                if submitted.done():
                    del self._jobs[place]
                    self._next_try, self._patience = 0.0, time.monotonic() + _ENDING
                    return _ended(unit, submitted) if is_ours else _ended_of_another(unit)
            time.sleep(_POLL)

    def _find(self) -> None:
        """Looks which jobs of earlier calls are queued or run; the others are waited for no more."""
        found = []
        for task, unit, known in self._earlier:
            if known.done() or known.state.upper() == "UNKNOWN":
                self._waiting.append((task, unit))
            else:
                self._jobs.append(_Submitted(unit, known, False))
                found.append(known.job_id)
        self._earlier.clear()
        if found:
            self._say(f"waiting for jobs of an earlier call: {', '.join(found)}")

    def _submit(self) -> None:
        while self._waiting and time.monotonic() >= self._next_try:
            task, unit = self._waiting[0]
            try:
                submitted = self._executor.submit(job, task, unit)
            except self._refusals as error:
                is_patient = time.monotonic() < self._patience
                if not is_patient and not self._jobs:
                    reason = " ".join(str(error).split())[:_LINE]
                    raise ValueError(f"launcher='slurm': {reason}; mend [slurm], or try again later") from None
                self._next_try = time.monotonic() + _AGAIN if is_patient else math.inf  # until a job has ended
                if self._num_told != len(self._waiting):
                    self._num_told = len(self._waiting)
                    self._say(f"{self._num_told} more to submit as jobs end")
                return
            unit.shared.mkdir(parents=True, exist_ok=True)
            stored.write_json(unit.shared / _JOB, submitted.job_id)
            self._jobs.append(_Submitted(unit, submitted, True))
            self._waiting.popleft()

    def close(self) -> None:
        """See `Launcher`; jobs of this call that are not done are cancelled."""
        for submitted in self._jobs:
            if submitted.is_ours:
                submitted.job.cancel()


def _ended(unit: Unit, submitted: Any) -> Done:
    error = submitted.exception()
    if error is not None:
        return Done(unit, f"{' '.join(str(error).split())[:_LINE]}; see {submitted.paths.stderr}")
    return Done(unit, *submitted.result())


def _ended_of_another(unit: Unit) -> Done:
    """Of a job that may have been asked for other rounds, or have failed: what is left of its unit is tried again."""
    if unit.is_finished() and unit.is_summarized():
        return Done(unit, None)
    return Done(unit, "its job of an earlier call has ended", is_elsewhere=True)


def job(task: str, unit: Unit) -> tuple[str | None, bool, Any]:
    """What a node does, on all its cores."""
    use_all_cores()
    done = perform(Worker(), task, unit, lambda count: None)
    return done.error, done.is_elsewhere, done.result
