"""Planning and execution of the points of a grid."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax

from fedjax_srp.driver.simulate import seeds_at_once
from fedjax_srp.lab.grids import batches
from fedjax_srp.lab.grids.batches import Member, Unit
from fedjax_srp.lab.grids.launch import (
    HAS_WORKERS,
    GridBar,
    Launcher,
    ProcessLauncher,
    devices_per_worker,
    perform,
)
from fedjax_srp.lab.grids.points import Point, Problems, describe_axes
from fedjax_srp.lab.grids.slurm import SlurmLauncher, describe_jobs
from fedjax_srp.lab.grids.work import Work
from fedjax_srp.lab.runs.folder import tidy
from fedjax_srp.parts.checks import checked, printable
from fedjax_srp.parts.part import AtLeast, Count

Number = Annotated[int, AtLeast(0)]
LauncherName = Literal["local", "slurm"]

# Rounds of all runs of a batch together, from which it pays: its longer compilation costs as much
# as it saves in 170 to 290 rounds on a CPU (benchmarks/results/grid-1-core.json).
MIN_BATCHED_ROUNDS = 250


class Failure(NamedTuple):
    """A point that could not be run."""

    name: str
    error: str  # in one line


class GridOutcome(NamedTuple):
    """Outcome of a grid."""

    members: list[Member]
    failures: list[Failure]
    seconds: float | None  # estimated for the unfinished runs, see `Grid`


@checked
def execute(
    points: Sequence[Point],
    folder: Path,
    workers: Number = 0,
    batch: Count | None = None,
    retries: Number = 0,
    launcher: LauncherName = "local",
    slurm: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> GridOutcome:
    """Run the unfinished points of a grid; for the options see `grid`."""
    num_workers = max(workers, 1)
    if launcher == "slurm":
        planned = plan(points, folder, batch, num_workers, 1, None)
    else:
        devices = devices_per_worker(workers) if workers else len(jax.devices())
        planned = plan(points, folder, batch, num_workers, num_workers, devices)
    unfinished = []
    finished = []  # folders
    outdated = []
    for unit in planned:
        if not unit.is_finished():
            unfinished.append(unit)
            continue
        finished.append(unit.shared)
        if not unit.has_current_summary():
            outdated.append(unit)
    members = [member for unit in planned for member in unit.members]
    only_describes = dry_run and launcher == "slurm"  # jobs wait in a queue
    text = describe_plan(planned, unfinished, folder)
    if only_describes:
        text += f"\n{describe_jobs(len(unfinished), slurm or {})}"
    if progress:
        print(printable(text, kept="\n"), file=sys.stderr)
    failures: list[Failure] = []
    seconds = None
    if not dry_run:
        finished += [member.folder for member in members if member.is_finished()]
        for each in finished:
            tidy(each)
    is_silent = not progress or dry_run or not unfinished
    if outdated and not dry_run:
        run_units(outdated, Launcher(GridBar(outdated, 0, silent=True)), 0, failures)
    todo = [] if only_describes else unfinished
    with launched(
        todo, len(members), folder, workers, launcher, slurm, is_silent
    ) as runner:
        if not dry_run:
            run_units(unfinished, runner, retries, failures)
        elif not only_describes:
            seconds = _measure(unfinished, runner, num_workers, failures)
    print_failures(failures)
    return GridOutcome(members, failures, seconds)


def print_failures(failures: Sequence[Failure]) -> None:
    """Print a line for each failure."""
    for failure in failures:
        print(printable(f"failed: {failure.name}: {failure.error}"), file=sys.stderr)


@contextlib.contextmanager
def launched(
    units: Sequence[Work],
    num_points: int,
    folder: Path,
    workers: int,
    launcher: LauncherName,
    slurm: Mapping[str, Any] | None,
    is_silent: bool,
    called: str = "runs",
) -> Iterator[Launcher]:
    """Yield a launcher of units with a progress bar, and stop what still runs at the end."""
    if workers and launcher == "local" and not HAS_WORKERS:
        raise ValueError(
            f"workers={workers}: this system has no worker processes; give workers=0, which runs "
            "everything in this process"
        )
    bar = GridBar(units, num_points, is_silent, called)
    runner = Launcher(bar)
    try:
        if launcher == "slurm" and units:
            runner = SlurmLauncher(folder / batches.SHARED / "slurm", slurm or {}, bar)
        elif units and workers:
            runner = ProcessLauncher(workers, folder / batches.SHARED, units, bar)
        yield runner
    finally:
        runner.close()
        bar.close()


def run_units(
    units: Sequence[Work], runner: Launcher, retries: int, failures: list[Failure]
) -> None:
    """Run units, and append those that fail to `failures`."""
    for unit, result in perform("run", units, runner, retries):
        if result.error is not None:
            failures.extend(Failure(name, result.error) for name in unit.names)


def _measure(
    units: Sequence[Unit], runner: Launcher, num_workers: int, failures: list[Failure]
) -> float | None:
    """Run each program up to its first evaluation; return the seconds of all units.

    They are divided by the number of workers; None if a program fails.
    """
    programs: dict[Any, list[Unit]] = {}
    for unit in units:
        programs.setdefault(_program(unit), []).append(unit)
    first_units = [alike[0] for alike in programs.values()]
    seconds = 0.0
    for first, result in perform("measure", first_units, runner, retries=0):
        if result.error is not None:
            failures.append(Failure(first.names[0], result.error))
            continue
        seconds += result.value.compile
        for unit in programs[_program(first)]:
            num_rounds = unit.num_rounds() / len(unit.trainings())
            seconds += result.value.per_round * num_rounds
    if failures:
        return None
    return seconds / num_workers


def _program(unit: Work) -> Any:
    return unit.runs[0].program_of_any_length


def plan(
    points: Sequence[Point],
    folder: Path,
    batch: int | None,
    workers: int,
    sharers: int,
    devices: int | None,
) -> list[Unit]:
    """Check all unfinished points without compiling, and group the points into units.

    Args:
        points: of the grid.
        folder: of the grid.
        batch: most trainings in one program; None to choose by measured costs.
        workers: number of workers to keep busy.
        sharers: number of workers that share this machine's memory.
        devices: per worker; None if only the workers know.
    """
    unfinished = set()
    for member in batches.as_members(points, folder):
        if not member.is_finished():
            unfinished.add(member.point.id)
    num_trainings = len({p.run.training for p in points if p.id in unfinished})
    # of a worker: a larger program would leave another worker idle
    largest = -(-num_trainings // workers)
    problems = Problems()
    contracts: set[str] = set()  # that were checked
    groups = []
    for group in batches.group_by_program(points):
        left = [point for point in group if point.id in unfinished]
        _check(left, devices, contracts, problems)
        run = group[0].run
        size = min(len({point.run.training for point in group}), batch or largest)
        if batch is None and size * run.settings.num_rounds < MIN_BATCHED_ROUNDS:
            size = 1
        if size > 1 and left and not problems:
            evaluations: dict[str, None] = {}
            for point in left:
                evaluations |= dict.fromkeys(point.run.record["evaluations"])
            request = left[0].run.request(devices, [*evaluations])
            request = request._replace(values=batches.batch_of(group).values)
            size = seeds_at_once(request, size, sharers)
        groups.append((group, max(size, 1)))
    problems.raise_if_any()
    return batches.assign_units(groups, folder, batch)


def _check(
    points: Sequence[Point],
    devices: int | None,
    contracts: set[str],
    problems: Problems,
) -> None:
    """Check points of one program as far as nothing is compiled, with one trace for each contract.

    Args:
        points: they differ in seed, floats and evaluation.
        devices: see `plan`.
        contracts: keys that were checked, see `Run.contract`; others are added.
        problems: gets the errors.
    """
    errors: dict[str, ValueError] = {}  # by contract
    for point in points:
        contract = point.run.contract
        if contract not in contracts and contract not in errors:
            try:
                point.run.check(devices)
                contracts.add(contract)
            except ValueError as error:
                errors[contract] = error
        if contract in errors:
            problems.add(errors[contract], point.name)


def describe_plan(
    planned: Sequence[Unit], unfinished: Sequence[Unit], folder: Path
) -> str:
    """Describe the plan: its axes in a line, and the numbers of runs, programs and rounds in another."""
    members = [member for unit in planned for member in unit.members]
    finished = [member for member in members if member.is_finished()]
    num_outdated = sum(not member.has_current_summary() for member in finished)
    axes = describe_axes([member.point for member in members])
    text = f"{axes}\n" if axes else ""
    text += f"{folder}: {len(members)} runs, {len(finished)} finished"
    if num_outdated:
        text += (
            f" ({num_outdated} with another communication cost, whose summaries will be "
            "rewritten)"
        )
    if not unfinished:
        return text
    num_rounds = sum(unit.num_rounds() for unit in unfinished)
    num_restarts = sum(unit.must_restart() for unit in unfinished)
    text += f"; {len(members) - len(finished)} to run as {len(unfinished)} program"
    if len(unfinished) > 1:
        text += "s"
    if num_restarts:
        text += (
            f", {num_restarts} of them from round 0, having no checkpoint of their own"
        )
    return f"{text}, {num_rounds} rounds at most"
