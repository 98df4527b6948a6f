"""Units as jobs of Slurm, submitted with submitit; or as processes of its local executor."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.grids.launchers import Done, Event, perform
from fedjax_srp.grids.units import Unit
from fedjax_srp.grids.work import Worker

_POLL = 1.0  # seconds
_LINE = 300  # letters of an error


class Slurm:
    """Submits a job for each unit, all at once; the scheduler decides when they run.

    Args:
        folder: of what submitit writes; on a file system that the nodes share.
        parameters: of `submitit.AutoExecutor.update_parameters`, and `cluster`: "slurm" (the default), "local".

    Raises:
        ValueError: submitit is not installed, or refuses a parameter.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any]):
        try:
            submitit = importlib.import_module("submitit")
        except ImportError:
            raise ValueError("launcher='slurm': submitit is not installed; pip install submitit") from None
        others = dict(parameters)
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=others.pop("cluster", "slurm"))
            self._executor.update_parameters(**{"name": "fedjax-srp", **others})
        except (RuntimeError, NameError, TypeError, AssertionError, ValueError) as error:
            raise ValueError(f"launcher='slurm': {' '.join(str(error).split())[:_LINE]}; mend [slurm]") from None
        self._jobs: list[tuple[Unit, Any]] = []

    def has_room(self) -> bool:
        """See `Launcher`."""
        return True

    def start(self, task: str, unit: Unit) -> None:
        """See `Launcher`."""
        self._jobs.append((unit, self._executor.submit(job, task, unit)))

    def next(self) -> Event:
        """See `Launcher`."""
        while True:
            for place, (unit, submitted) in enumerate(self._jobs):
                if submitted.done():
                    del self._jobs[place]
                    error = submitted.exception()
                    if error is not None:
                        return Done(unit, f"{' '.join(str(error).split())[:_LINE]}; see {submitted.paths.stderr}")
                    return Done(unit, *submitted.result())
            time.sleep(_POLL)

    def close(self) -> None:
        """See `Launcher`; jobs that are not done are cancelled."""
        for _, submitted in self._jobs:
            submitted.cancel()


def job(task: str, unit: Unit) -> tuple[str | None, bool, Any]:
    """What a node does, on all its cores."""
    use_all_cores()
    done = perform(Worker(), task, unit, lambda count: None)
    return done.error, done.is_elsewhere, done.result
