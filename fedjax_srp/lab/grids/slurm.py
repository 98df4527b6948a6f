"""Launcher of units as Slurm jobs with submitit, or as processes of its local executor."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from fedjax_srp.lab.grids.launch import GridBar, Launcher
from fedjax_srp.lab.grids.work import TaskResult, Work, Worker, packed, unpacked
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.libraries import SLURM, needed_by
from fedjax_srp.results import json_files
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.xla.cores import use_all_cores

_POLL = 1.0  # seconds between looks for results
_SECONDS = 10.0  # at most, between looks into the queue
_QUEUE = ["squeue", "--me", "--noheader", "--format=%i"]
_RETRY_AFTER = 10.0  # seconds after a refused submission
_MAX_ERROR_LENGTH = 300
_SLURM = "slurm"  # the default of `cluster`
_NO_SLURM = "no Slurm was found on this machine (no srun)"
_JOB = "job.json"  # in `Unit.shared`, id of the unit's last job
_TIME_LIMITS = "slurm_max_num_timeout"  # how often a job may reach its time limit
_JOB_ID = re.compile(r"\d+(_\d+)?")


class _Job(NamedTuple):
    unit: Work
    submitted: Any  # `submitit.Job`
    is_earlier: bool  # of an earlier call


class _OnNode:
    """Work of a job; submitit lets Slurm queue it again after a preemption or a time limit."""

    def __call__(self, task: str, pickled: bytes) -> TaskResult:
        """Perform a task on a packed unit, with all cores of the job."""
        use_all_cores()
        (unit,) = unpacked(pickled).values()
        return Worker().perform(task, unit, lambda rounds: None)

    def checkpoint(self, *arguments: Any) -> Any:
        """Return what runs next: the same, which goes on from the checkpoint of the unit."""
        helpers = importlib.import_module("submitit.helpers")
        return helpers.DelayedSubmission(self, *arguments)


class SlurmLauncher(Launcher):
    """Submits a job for each unit, as many at once as the scheduler accepts.

    Jobs of an earlier call that are still queued or running are waited for, not submitted again.

    Jobs and their results are pickles, and reading one executes its code. So each call has a new
    folder, in which only this user can write, and reads no result of another call.

    Args:
        folder: for the files of submitit, a folder for each call, on a file system that the nodes share.
        parameters: of `submitit.AutoExecutor`, and `cluster`: "slurm" (the default) or "local".
        bar: progress bar.

    Raises:
        ValueError: submitit or Slurm is not installed, or a parameter is refused, or others can write to the folder.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], bar: GridBar):
        cluster = _cluster(parameters)
        if _is_missing(cluster):
            raise ValueError(
                f"launcher='slurm': {_NO_SLURM}; call it where jobs are submitted, or with "
                "another launcher"
            )
        with needed_by("launcher='slurm'", SLURM):
            submitit = importlib.import_module("submitit")
            errors = importlib.import_module("submitit.core.utils")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        # for this user alone
        self._folder = Path(tempfile.mkdtemp(dir=folder, prefix=""))
        try:
            self._executor = _executor(self._folder, parameters, cluster)
        except ValueError:
            self._folder.rmdir()
            raise
        self._refusals = (errors.FailedJobError, errors.FailedSubmissionError)
        self._is_slurm = cluster == _SLURM
        self._earlier_job = submitit.SlurmJob
        self._earlier_job.watcher = _queue()
        self.bar = bar
        self._jobs: dict[str, _Job] = {}  # by unit id
        self._next_try = 0.0  # by `time.monotonic`

    @override
    def earlier_jobs(self, units: Sequence[Work]) -> set[str]:
        jobs = {}
        for unit in units:
            with contextlib.suppress(DamagedError):
                job_id = json_files.read_json(unit.shared / _JOB).get("id")
                if self._is_slurm and _JOB_ID.fullmatch(str(job_id)):
                    job = self._earlier_job(self._folder, str(job_id))
                    jobs[unit.id] = _Job(unit, job, is_earlier=True)
        for name, job in jobs.items():
            if not job.submitted.done():
                self._jobs[name] = job
        if self._jobs:
            names = ", ".join(job.submitted.job_id for job in self._jobs.values())
            self.bar.say(f"waiting for jobs of an earlier call: {names}")
        return set(self._jobs)

    @override
    def start(self, task: str, unit: Work) -> bool:
        if time.monotonic() < self._next_try:
            return False
        try:
            submitted = self._executor.submit(_OnNode(), task, packed([unit]))
        except self._refusals as error:
            if not subprocess.run(_QUEUE, capture_output=True, check=False).stdout:
                raise ValueError(
                    f"launcher='slurm': {_one_line(error)}; correct [slurm], or try again later"
                ) from None
            if not self._next_try:
                self.bar.say(
                    "the job limit is reached; more jobs will be submitted as others end"
                )
            self._next_try = time.monotonic() + _RETRY_AFTER
            return False
        unit.shared.mkdir(parents=True, exist_ok=True)
        json_files.write_json(unit.shared / _JOB, {"id": submitted.job_id})
        self._jobs[unit.id] = _Job(unit, submitted, is_earlier=False)
        return True

    @override
    def results(self) -> list[tuple[Work, TaskResult]]:
        ended = [name for name, job in self._jobs.items() if job.submitted.done()]
        if not ended:
            time.sleep(_POLL)
            return []
        self._next_try = min(self._next_try, time.monotonic())
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


def describe_jobs(num_jobs: int, parameters: Mapping[str, Any]) -> str:
    """Describe the jobs of a plan, whose parameters are checked as if they were submitted.

    Raises:
        ValueError: submitit is not installed, or refuses a parameter.
    """
    cluster = _cluster(parameters)
    is_missing = _is_missing(cluster)
    with tempfile.TemporaryDirectory() as folder:
        _executor(Path(folder), parameters, "local" if is_missing else cluster)
    given = ", ".join(f"{name}={short(value)}" for name, value in parameters.items())
    partition = parameters.get("slurm_partition", "the default one")
    text = f"jobs: {num_jobs}; partition: {partition}; [slurm]: {given or 'none'}"
    return f"{text}; {_NO_SLURM}" if is_missing else text


def _cluster(parameters: Mapping[str, Any]) -> str:
    return parameters.get("cluster", _SLURM)


def _is_missing(cluster: str) -> bool:
    return cluster == _SLURM and shutil.which("srun") is None


def _executor(folder: Path, parameters: Mapping[str, Any], cluster: str) -> Any:
    """Return submitit's executor of jobs with these parameters.

    Raises:
        ValueError: submitit is not installed, or refuses a parameter.
    """
    with needed_by("launcher='slurm'", SLURM):
        submitit = importlib.import_module("submitit")
    others = {"name": "fedjax-srp", **parameters}
    others.pop("cluster", None)
    time_limits = others.pop(_TIME_LIMITS, 3)
    try:
        executor = submitit.AutoExecutor(folder, cluster, **{_TIME_LIMITS: time_limits})
        executor.update_parameters(**others)
    except (RuntimeError, NameError, TypeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"launcher='slurm': {_one_line(error)}; correct [slurm]"
        ) from None
    return executor


def _queue() -> Any:
    """Return a watcher of submitit that asks for the queue, which needs no accounting.

    A job that is not in the queue has ended.
    """
    slurm = importlib.import_module("submitit.slurm.slurm")

    class Queue(slurm.SlurmInfoWatcher):
        def _make_command(self) -> list[str]:
            return _QUEUE

        def read_info(self, string: bytes) -> dict[str, dict[str, str]]:
            ended = self._registered.difference(string.decode().split())
            states = dict.fromkeys(self._registered, "RUNNING")
            states |= dict.fromkeys(ended, "ENDED")
            return {job: {"State": state} for job, state in states.items()}

    return Queue(_SECONDS)


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
