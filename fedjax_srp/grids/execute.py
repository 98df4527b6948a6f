"""The points of a grid, planned and run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_srp.engine.outcome import Limits
from fedjax_srp.engine.prepare import Request, prepare
from fedjax_srp.engine.simulate import SEEDS_OPTIONS, seeds_at_once
from fedjax_srp.grids import units
from fedjax_srp.grids.launch import Bar, Launcher, Processes, devices_of, perform
from fedjax_srp.grids.points import Point, Problems
from fedjax_srp.grids.slurm import Slurm
from fedjax_srp.grids.units import Member, Unit
from fedjax_srp.grids.work import Cost, Datasets
from fedjax_srp.runs.run import LIMITS

# Rounds of all runs of a batch, from which it saves more than its longer compilation costs: 170 to 290 of them on a CPU
# (benchmarks/results/grid-1-core.json).
WORTH_IT = 250


class How(NamedTuple):
    """How the points of a grid are run, see `grid`."""

    workers: int = 0
    batch: int | None = None
    retries: int = 0
    launcher: str = "local"
    slurm: Mapping[str, Any] | None = None
    dry_run: bool = False
    progress: bool = True


class Failure(NamedTuple):
    """A point that could not be run."""

    name: str
    error: str  # in one line


class Ended(NamedTuple):
    """What became of a grid."""

    members: list[Member]
    failures: list[Failure]
    seconds: float | None  # that the rest would take, see `Grid`


def execute(points: Sequence[Point], folder: Path, how: How) -> Ended:
    """Run what is not finished of a grid."""
    is_local = how.launcher == "local"
    sharers = max(how.workers, 1) if is_local else 1
    devices = (devices_of(how.workers) if how.workers else len(jax.devices())) if is_local else None
    planned = plan(points, folder, how.batch, max(how.workers, 1), sharers, devices)
    left = [unit for unit in planned if not unit.is_finished()]
    members = [member for unit in planned for member in unit.members]
    if how.progress:
        print(described(planned, left, folder), file=sys.stderr)
    bar = Bar([] if how.dry_run else left, len(members), silent=not how.progress or how.dry_run or not left)
    failures: list[Failure] = []

    def run(task: str, chosen: Sequence[Unit], where: Launcher, shown: Bar) -> dict[str, Any]:
        """Results by id of the unit; notes what failed."""
        results = {}
        for unit, done in perform(task, chosen, where, shown, how.retries if task == "run" else 0):
            results[unit.id] = done.result
            if done.error is not None:
                failed = unit.members if task == "run" else unit.members[:1]
                failures.extend(Failure(member.point.name, done.error) for member in failed)
        return results

    seconds, where = None, Launcher()
    try:
        if not how.dry_run:  # summaries for another cost first, for which nothing is simulated
            others = [unit for unit in planned if unit.is_finished() and not unit.is_summarized()]
            run("run", others, where, Bar(others, 0, silent=True))
        if left and not (how.dry_run and not is_local):
            where = _launcher(how, folder, bar, left)
            if how.dry_run:
                first = {unit.members[0].point.run.program(*LIMITS): unit for unit in reversed(left)}
                costs = run("measure", [*first.values()], where, bar)
                seconds = None if failures else _estimated(left, first, costs, max(how.workers, 1))
            else:
                run("run", left, where, bar)
    finally:
        where.close()
        bar.close()
    return Ended(members, failures, 0.0 if how.dry_run and is_local and not left else seconds)


def _launcher(how: How, folder: Path, bar: Bar, left: Sequence[Unit]) -> Launcher:
    if how.launcher == "slurm":
        return Slurm(folder / units.TOGETHER / "slurm", how.slurm or {}, bar.say)
    return Processes(how.workers, folder / units.TOGETHER, left, bar) if how.workers else Launcher(bar)


def _estimated(left: Sequence[Unit], first: Mapping[Any, Unit], costs: Mapping[str, Cost], workers: int) -> float:
    """Seconds of all units, divided among workers; no less than the longest unit takes."""
    compiling, running = {}, []
    for unit in left:
        measured = first[unit.members[0].point.run.program(*LIMITS)].id
        compiling[measured] = costs[measured].compile
        running.append(costs[measured].per_round * unit.num_rounds() / len(unit.trainings()))
    return max((sum(compiling.values()) + sum(running)) / workers, max(running) + min(compiling.values()))


def plan(
    points: Sequence[Point], folder: Path, batch: int | None, workers: int, sharers: int, devices: int | None
) -> list[Unit]:
    """Check every point that is not finished, as far as it can be without compiling, and say which run together.

    Args:
        points: of the grid.
        folder: of the grid.
        batch: points at most in one program; None for a choice by what was measured.
        workers: that are to have work.
        sharers: how many of them share this machine's memory.
        devices: of each of them; None where only they can tell.
    """
    left = {member.point.id for member in units.members(points, folder) if not member.is_finished()}
    trainings = {point.run.training for point in points if point.id in left}
    share = -(-len(trainings) // workers)  # a worker's: more in one program would leave another without work
    datasets, problems, sized = Datasets(), Problems(), []
    for alike in units.alike(points):
        asked: dict[Any, Request | ValueError] = {}
        for point in (point for point in alike if point.id in left):
            judges = point.run.name, point.run.evaluations  # the rest is the same program
            try:
                _ = point.run.leaves  # which the parts judge
                if judges not in asked:
                    asked[judges] = _checked(point, datasets, devices)
                if isinstance(refusal := asked[judges], ValueError):
                    raise refusal
            except ValueError as error:
                problems.add(error, point.name)
        most = min(len({point.run.training for point in alike}), share if batch is None else batch)
        if batch is None and most * alike[0].run.num_rounds < WORTH_IT:
            most = 1
        if most > 1 and asked and not problems:
            first, *others = (request for request in asked.values() if isinstance(request, Request))
            judges = [*dict.fromkeys(name for request in (first, *others) for name in request.evaluations or ())]
            values = units.batch_of(alike).values
            most = seeds_at_once(first._replace(values=values, evaluations=judges), most, sharers)
        sized.append((alike, max(most, 1)))
    problems.refuse()
    return units.arranged(sized, folder, batch)


def _checked(point: Point, datasets: Datasets, devices: int | None) -> Request | ValueError:
    """What is asked of the engine, with devices of this process to plan on where a worker has more; or the error."""
    try:
        given = point.run.simulation(datasets(point.run.data))
        asked = given["devices"]
        if asked is not None:
            if devices is not None and asked > devices:
                raise ValueError(f"devices={asked}: a run has {devices} here; give no more, or fewer workers")
            given["devices"] = min(asked, len(jax.devices()))
        request = Request(given["algorithm"], given["data"], **{n: given[n] for n in SEEDS_OPTIONS if n in given})
        evaluations = prepare(request).evaluations
        Limits(**{name: given[name] for name in Limits._fields}).check()
        return request._replace(evaluations=evaluations)
    except ValueError as error:
        return error


def described(planned: Sequence[Unit], left: Sequence[Unit], folder: Path) -> str:
    """Return the plan in a line."""
    runs = sum(len(unit.members) for unit in planned)
    missing = sum(not member.is_finished() for unit in left for member in unit.members)
    text = f"{folder}: {runs} runs, {runs - missing} finished"
    others = sum(m.is_finished() and not m.is_summarized() for unit in planned for m in unit.members)
    if others:
        text += f" ({others} with another communication, whose summaries are written anew)"
    if left:
        batches = [len(unit.members) for unit in left if len(unit.trainings()) > 1]
        trainings = sum(len({m.point.run.training for m in unit.members if not m.is_finished()}) for unit in left)
        judged = f" by {trainings} training{'s' * (trainings > 1)}" if trainings < missing else ""
        together = f", {sum(batches)} of them in {len(batches)} batches" if batches else ""
        anew = sum(unit.begins_anew() for unit in left)
        again = f", {anew} of them from the start, having no checkpoint of their own" if anew else ""
        text += f"; {missing} to run{judged}{together}{again}, {sum(unit.num_rounds() for unit in left)} rounds at most"
    return text
