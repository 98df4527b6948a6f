"""Planning and execution of the points of a grid."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax

from fedjax_srp.driver.outcome import Limits
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.record import LIMITS
from fedjax_srp.driver.simulate import seeds_at_once
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids.batches import Member, Unit
from fedjax_srp.lab.grids.launch import (
    GridBar,
    Launcher,
    ProcessLauncher,
    devices_per_worker,
    perform,
)
from fedjax_srp.lab.grids.points import Point, Problems
from fedjax_srp.lab.grids.slurm import SlurmLauncher
from fedjax_srp.lab.grids.work import Cost
from fedjax_srp.lab.runs.run import load_data
from fedjax_srp.parts.checks import checked, printable
from fedjax_srp.parts.part import AtLeast, Count

Number = Annotated[int, AtLeast(0)]

# Rounds of all runs of a batch together, from which it pays: its longer compilation costs as much as it saves in 170 to
# 290 rounds on a CPU (benchmarks/results/grid-1-core.json).
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
    launcher: Literal["local", "slurm"] = "local",
    slurm: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> GridOutcome:
    """Run the unfinished points of a grid; for the options see `grid`."""
    is_local, shares = launcher == "local", max(workers, 1)
    devices = (
        (devices_per_worker(workers) if workers else len(jax.devices()))
        if is_local
        else None
    )
    planned = plan(points, folder, batch, shares, shares if is_local else 1, devices)
    unfinished = [unit for unit in planned if not unit.is_finished()]
    members = [member for unit in planned for member in unit.members]
    if progress:
        print(
            printable(describe_plan(planned, unfinished, folder), kept="\n"),
            file=sys.stderr,
        )
    bar = GridBar(
        [] if dry_run else unfinished,
        len(members),
        not progress or dry_run or not unfinished,
    )
    failures: list[Failure] = []

    def run(task: str, chosen: Sequence[Unit], runner: Launcher) -> dict[str, Any]:
        """Perform a task on units, collect its failures, and return its values by unit id."""
        values = {}
        for unit, result in perform(
            task, chosen, runner, retries if task == "run" else 0
        ):
            values[unit.id] = result.value
            if result.error is not None:
                failed = unit.members if task == "run" else unit.members[:1]
                failures.extend(
                    Failure(member.point.name, result.error) for member in failed
                )
        return values

    seconds, runner = (
        0.0 if dry_run and is_local and not unfinished else None,
        Launcher(bar),
    )
    try:
        if not dry_run:  # first the summaries for another cost, which need no simulation
            outdated = [
                unit
                for unit in planned
                if unit.is_finished() and not unit.has_current_summary()
            ]
            run("run", outdated, Launcher(GridBar(outdated, 0, silent=True)))
        if unfinished and (is_local or not dry_run):
            if not is_local:
                runner = SlurmLauncher(folder / units.SHARED / "slurm", slurm or {}, bar)
            elif workers:
                runner = ProcessLauncher(workers, folder / units.SHARED, unfinished, bar)
            if dry_run:
                first = {
                    unit.members[0].point.run.program(*LIMITS): unit
                    for unit in reversed(unfinished)
                }
                costs = run("measure", [*first.values()], runner)
                seconds = (
                    None if failures else _estimate(unfinished, first, costs, shares)
                )
            else:
                run("run", unfinished, runner)
    finally:
        runner.close()
        bar.close()
    for failure in failures:
        print(printable(f"failed: {failure.name}: {failure.error}"), file=sys.stderr)
    return GridOutcome(members, failures, seconds)


def _estimate(
    left: Sequence[Unit],
    first: Mapping[Any, Unit],
    costs: Mapping[str, Cost],
    workers: int,
) -> float:
    """Estimate the seconds of units divided among workers, at least those of the longest unit."""
    compiling, running = {}, []
    for unit in left:
        measured = first[unit.members[0].point.run.program(*LIMITS)].id
        compiling[measured] = costs[measured].compile
        running.append(
            costs[measured].per_round * unit.num_rounds() / len(unit.trainings())
        )
    return max(
        (sum(compiling.values()) + sum(running)) / workers,
        max(running) + min(compiling.values()),
    )


def plan(
    points: Sequence[Point],
    folder: Path,
    batch: int | None,
    workers: int,
    sharers: int,
    devices: int | None,
) -> list[Unit]:
    """Check all unfinished points, as far as possible without compiling, and group the points into units.

    Args:
        points: of the grid.
        folder: of the grid.
        batch: most trainings in one program; None to choose by measured costs.
        workers: number of workers to keep busy.
        sharers: number of workers that share this machine's memory.
        devices: per worker; None if only the workers know.
    """
    unfinished = {
        member.point.id
        for member in units.as_members(points, folder)
        if not member.is_finished()
    }
    trainings = {point.run.training for point in points if point.id in unfinished}
    share = -(
        -len(trainings) // workers
    )  # of a worker: a larger program would leave another worker idle
    problems, sized = Problems(), []
    for group in units.group_by_program(points):
        requests: dict[Any, Request | ValueError] = {}
        for point in (point for point in group if point.id in unfinished):
            evaluated_by = (
                point.run.name,
                point.run.evaluations,
            )  # the group differs in nothing else that is checked
            try:
                _ = point.run.leaves  # builds the parts, which check them
                if evaluated_by not in requests:
                    requests[evaluated_by] = _check_request(point, devices)
                if isinstance(refusal := requests[evaluated_by], ValueError):
                    raise refusal
            except ValueError as error:
                problems.add(error, point.name)
        size = min(
            len({point.run.training for point in group}),
            share if batch is None else batch,
        )
        if batch is None and size * group[0].run.num_rounds < MIN_BATCHED_ROUNDS:
            size = 1
        if size > 1 and requests and not problems:
            first, *others = (
                request for request in requests.values() if isinstance(request, Request)
            )
            evaluations = [
                *dict.fromkeys(
                    name
                    for request in (first, *others)
                    for name in request.evaluations or ()
                )
            ]
            values = units.batch_of(group).values
            size = seeds_at_once(
                first._replace(values=values, evaluations=evaluations), size, sharers
            )
        sized.append((group, max(size, 1)))
    problems.raise_if_any()
    return units.assign_units(sized, folder, batch)


def _check_request(point: Point, devices: int | None) -> Request | ValueError:
    """Return the checked request of a point to the engine, planned on devices of this process, or the error."""
    try:
        given = point.run.simulation(load_data(point.run.data))
        requested = given["devices"]
        if requested is not None:
            if devices is not None and requested > devices:
                raise ValueError(
                    f"devices={requested}: a run has {devices} here; give no more, or fewer workers"
                )
            given["devices"] = min(requested, len(jax.devices()))
        request = Request(
            **{name: given[name] for name in Request._fields if name in given}
        )
        prepared, limits = (
            prepare(request),
            Limits(**{name: given[name] for name in Limits._fields}),
        )
        limits.check()
        limits.check_fit(prepared)
        return request._replace(evaluations=prepared.evaluations)
    except ValueError as error:
        return error


def describe_plan(
    planned: Sequence[Unit], unfinished: Sequence[Unit], folder: Path
) -> str:
    """Describe the plan in one line."""
    runs = sum(len(unit.members) for unit in planned)
    missing = sum(
        not member.is_finished() for unit in unfinished for member in unit.members
    )
    text = f"{folder}: {runs} runs, {runs - missing} finished"
    outdated = sum(
        m.is_finished() and not m.has_current_summary()
        for unit in planned
        for m in unit.members
    )
    if outdated:
        text += f" ({outdated} with another communication cost, whose summaries will be rewritten)"
    if unfinished:
        batches = [len(unit.members) for unit in unfinished if len(unit.trainings()) > 1]
        trainings = sum(
            len({m.point.run.training for m in unit.members if not m.is_finished()})
            for unit in unfinished
        )
        shared = (
            f" by {trainings} training{'s' * (trainings > 1)}"
            if trainings < missing
            else ""
        )
        together = (
            f", {sum(batches)} of them in {len(batches)} batches" if batches else ""
        )
        restarts = sum(unit.must_restart() for unit in unfinished)
        again = (
            f", {restarts} of them from round 0, having no checkpoint of their own"
            if restarts
            else ""
        )
        text += f"; {missing} to run{shared}{together}{again}, {sum(u.num_rounds() for u in unfinished)} rounds at most"
    return text
