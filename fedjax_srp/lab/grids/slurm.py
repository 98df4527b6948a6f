"""Launcher of units as Slurm jobs with submitit, or as processes of its local executor."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from fedjax_srp.lab.grids.batches import Unit
from fedjax_srp.lab.grids.launch import GridBar, Launcher
from fedjax_srp.lab.grids.work import TaskResult, Worker
from fedjax_srp.results import json_files
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.xla.cores import use_all_cores

_POLL = 1.0  # seconds
_GRACE = 60.0  # seconds for which a finished job may still count towards the user's limit
_RETRY_AFTER = 10.0  # seconds after a refused submission
_MAX_ERROR_LENGTH = 300
_JOB = "job.json"  # in `Unit.shared`, id and folder of the unit's last job
_JOB_ID = re.compile(r"\d+(_\d+)?")
_FOLDER = re.compile(r"\w+")


class _Job(NamedTuple):
    unit: Unit
    submitted: Any  # `submitit.Job`
    is_earlier: bool  # of an earlier call


class SlurmLauncher(Launcher):
    """Submits a job for each unit, as many at once as the scheduler accepts.

    Jobs of an earlier call that are still queued or running are waited for, not submitted again.

    Jobs and their results are pickles, and reading one executes its code. So each call has a new
    folder, in which only this user can write, and reads no result of another call.

    Args:
        folder: for the files of submitit, a folder for each call, on a file system that the nodes share.
        parameters: of `submitit.AutoExecutor.update_parameters`, and `cluster`: "slurm" (the default) or "local".
        bar: progress bar.

    Raises:
        ValueError: submitit is not installed, or refuses a parameter, or others can write to the folder.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], bar: GridBar):
        try:
            submitit = importlib.import_module("submitit")
            errors = importlib.import_module("submitit.core.utils")
        except ImportError:
            raise ValueError(
                "launcher='slurm': submitit is not installed; pip install submitit"
            ) from None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        # for this user alone
        self._folder = Path(tempfile.mkdtemp(dir=folder, prefix=""))
        others = {"name": "fedjax-srp", **parameters}
        cluster = others.pop("cluster", "slurm")
        try:
            self._executor = submitit.AutoExecutor(folder=self._folder, cluster=cluster)
            self._executor.update_parameters(**others)
        except (RuntimeError, NameError, TypeError, AssertionError, ValueError) as error:
            self._folder.rmdir()
            raise ValueError(
                f"launcher='slurm': {_one_line(error)}; correct [slurm]"
            ) from None
        self._refusals = (errors.FailedJobError, errors.FailedSubmissionError)
        self._earlier_job = None
        if cluster == "slurm":
            self._earlier_job = submitit.SlurmJob
        self.bar = bar
        self._jobs: dict[str, _Job] = {}  # by unit id
        # by `time.monotonic`
        self._next_try = 0.0
        self._grace_end = 0.0
        self._has_announced_limit = False

    @override
    def earlier_jobs(self, units: Sequence[Unit]) -> set[str]:
        if self._earlier_job is None:
            return set()
        for unit in units:
            try:
                written = json_files.read_json(unit.shared / _JOB)
            except DamagedError:
                continue
            job_id = str(written.get("id"))
            name = str(written.get("folder"))
            if not (_JOB_ID.fullmatch(job_id) and _FOLDER.fullmatch(name)):
                continue
            job = self._earlier_job(self._folder.with_name(name), job_id)
            if not job.done() and job.state.upper() != "UNKNOWN":
                self._jobs[unit.id] = _Job(unit, job, is_earlier=True)
        if self._jobs:
            names = ", ".join(job.submitted.job_id for job in self._jobs.values())
            self.bar.say(f"waiting for jobs of an earlier call: {names}")
        return set(self._jobs)

    @override
    def start(self, task: str, unit: Unit) -> bool:
        if time.monotonic() < self._next_try:
            return False
        try:
            submitted = self._executor.submit(perform_on_node, task, unit)
        except self._refusals as error:
            if time.monotonic() >= self._grace_end and not self._jobs:
                raise ValueError(
                    f"launcher='slurm': {_one_line(error)}; correct [slurm], or try again later"
                ) from None
            self._next_try = time.monotonic() + _RETRY_AFTER
            if not self._has_announced_limit:
                self._has_announced_limit = True
                self.bar.say(
                    "the job limit is reached; more jobs will be submitted as others end"
                )
            return False
        unit.shared.mkdir(parents=True, exist_ok=True)
        place = {"id": submitted.job_id, "folder": self._folder.name}
        json_files.write_json(unit.shared / _JOB, place)
        self._jobs[unit.id] = _Job(unit, submitted, is_earlier=False)
        return True

    @override
    def results(self) -> list[tuple[Unit, TaskResult]]:
        ended = [name for name, job in self._jobs.items() if job.submitted.done()]
        if not ended:
            time.sleep(_POLL)
            return []
        _check_private(self._folder)
        self._next_try = 0.0
        self._grace_end = time.monotonic() + _GRACE
        jobs = map(self._jobs.pop, ended)
        return [(job.unit, _result(job)) for job in jobs]

    @override
    def close(self) -> None:
        """Cancel the jobs of this call that are not done."""
        for job in self._jobs.values():
            if not job.is_earlier:
                job.submitted.cancel()
        with contextlib.suppress(OSError):  # it has files
            self._folder.rmdir()


def _check_private(folder: Path) -> None:
    """Raise a ValueError unless a folder is this user's own, and only this user can write to it."""
    status = folder.lstat()
    is_private = stat.S_ISDIR(status.st_mode)
    if hasattr(os, "getuid"):
        is_private &= status.st_uid == os.getuid() and not status.st_mode & 0o022
    if not is_private:
        raise ValueError(
            f"launcher='slurm': others can write to {str(folder)!r}, and its files are executed; "
            "remove it, or give another out"
        )


def _result(job: _Job) -> TaskResult:
    if job.is_earlier:  # it may have had fewer rounds, or have failed
        if job.unit.is_finished() and job.unit.has_current_summary():
            return TaskResult(None)
        return TaskResult("its job of an earlier call has ended", is_held_elsewhere=True)
    error = job.submitted.exception()
    if error is None:
        return job.submitted.result()
    return TaskResult(f"{_one_line(error)}; see {job.submitted.paths.stderr}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:_MAX_ERROR_LENGTH]


def perform_on_node(task: str, unit: Unit) -> TaskResult:
    """Perform a task on a node of the cluster, with all its cores."""
    use_all_cores()
    return Worker().perform(task, unit, lambda rounds: None)
