"""Units as jobs of Slurm, submitted with submitit; or as processes of its local executor."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_srp import storage
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.grids.launch import Launcher
from fedjax_srp.grids.units import Unit
from fedjax_srp.grids.work import Done, Worker

_POLL = 1.0  # seconds
_ENDING = 60.0  # seconds; so long a job that has given its result may still count as one of the user's
_AGAIN = 10.0  # seconds from one refusal to the next try
_LINE = 300  # letters of an error
_JOB = "job.json"  # the id of the last job of a unit, in the folder that its points share


class Slurm(Launcher):
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
        self._say, self._earlier = say, dict[str, Any]()
        self._jobs: dict[str, Any] = {}  # that run
        self._next_try, self._patience = 0.0, 0.0  # by the clock: when jobs are submitted again, how long in any case
        self._is_told = False

    def earlier(self, units: Sequence[Unit]) -> dict[str, Any]:
        """See `Launcher`."""
        found: dict[str, Any] = {}
        for unit in units:
            with contextlib.suppress(storage.DamagedError):
                if self._job_of_id is not None:
                    found[unit.id] = self._job_of_id(storage.read_json(unit.shared / _JOB)["id"])
        runs = {name: job for name, job in found.items() if not (job.done() or job.state.upper() == "UNKNOWN")}
        if runs:
            self._say(f"waiting for jobs of an earlier call: {', '.join(job.job_id for job in runs.values())}")
        self._earlier = dict(runs)
        return runs

    def start(self, task: str, unit: Unit) -> Any:
        """See `Launcher`."""
        if time.monotonic() < self._next_try:
            return None
        try:
            submitted = self._executor.submit(job, task, unit)
        except self._refusals as error:
            if time.monotonic() >= self._patience and not (self._jobs or self._earlier):
                reason = " ".join(str(error).split())[:_LINE]
                raise ValueError(f"launcher='slurm': {reason}; mend [slurm], or try again later") from None
            self._next_try = time.monotonic() + _AGAIN
            if not self._is_told:
                self._is_told = True
                self._say("more are submitted as jobs end")
            return None
        unit.shared.mkdir(parents=True, exist_ok=True)
        storage.write_json(unit.shared / _JOB, {"id": submitted.job_id})
        self._jobs[unit.id] = submitted
        return submitted

    def wait(self, futures: Sequence[Any]) -> None:
        """See `Launcher`."""
        if not any(future.done() for future in futures):
            time.sleep(_POLL)

    def ended(self, unit: Unit, future: Any) -> Done:
        """See `Launcher`."""
        self._next_try, self._patience = 0.0, time.monotonic() + _ENDING
        if self._earlier.pop(unit.id, None) is not None:  # it may have been asked for other rounds, or have failed
            is_ready = unit.is_finished() and unit.is_summarized()
            return Done(None) if is_ready else Done("its job of an earlier call has ended", is_elsewhere=True)
        del self._jobs[unit.id]
        error = future.exception()
        if error is not None:
            return Done(f"{' '.join(str(error).split())[:_LINE]}; see {future.paths.stderr}")
        return future.result()

    def close(self) -> None:
        """See `Launcher`; jobs of this call that are not done are cancelled."""
        for submitted in self._jobs.values():
            submitted.cancel()


def job(task: str, unit: Unit) -> Done:
    """Do what a node does, on all its cores."""
    use_all_cores()
    return Worker().perform(task, unit, lambda rounds: None)
