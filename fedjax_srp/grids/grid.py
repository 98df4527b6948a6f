"""`grid`: many runs from one description, in Python and on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from fedjax_srp._checks import check_integer, checked, unknown
from fedjax_srp.base import FederatedSource
from fedjax_srp.commands import run as run_command
from fedjax_srp.engine.outcome import Limits
from fedjax_srp.engine.prepare import Request, prepare
from fedjax_srp.engine.simulate import SEEDS_OPTIONS, seeds_at_once
from fedjax_srp.grids import estimate, result, schedule, units
from fedjax_srp.grids.launchers import InProcess, Launcher, Processes, devices_of
from fedjax_srp.grids.points import Point, Problems, Spec, points, read
from fedjax_srp.grids.result import Grid
from fedjax_srp.grids.units import Unit
from fedjax_srp.report.run_folder import writable

LAUNCHERS = ("local", "slurm")
# Rounds of all runs of a batch, from which it saves more than its longer compilation costs: 300 to 640 of them on a CPU
# (benchmarks/results/grid-1-core.json).
WORTH_IT = 500


@checked
def grid(
    file: str | os.PathLike | None = None,
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    exclude: Sequence[Mapping[str, Any]] = (),
    out: str | os.PathLike | None = None,
    workers: int = 0,
    batch: int | None = None,
    retries: int = 0,
    launcher: Literal["local", "slurm"] = "local",
    slurm: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Grid:
    """Runs every combination of values, each into a folder of its own, and returns them all.

    Names and values are those of `fedjax-srp run` with underscores. What is finished in the folder is not run again;
    what was killed goes on from its checkpoint; what fails is told at the end, and tried again by the next call.

    Args:
        file: TOML with tables [options], [axes], [variants.NAME], [[exclude]] and `out`, instead of arguments.
        axes: option -> its values; there is a run for each combination.
        options: of every run. An option that a method does not read is left out of its runs.
        variants: name -> options that go together: one more axis, called "variant".
        exclude: leaves out the runs that have all values of one of these; a list stands for any of its values. One that
            leaves out none is refused.
        out: folder of the grid; default that of the file, else runs/grid.
        workers: processes on this machine, each with its share of the cores or a GPU; 0 runs everything here.
        batch: runs at most in one program, which differ in seed and in floats such as learning rates alone; None for as
            many as memory allows, with work for every worker, where they have rounds enough for it to pay.
        retries: how often a run that fails is tried again.
        launcher: "slurm" submits jobs with submitit instead of starting processes here; `workers` then says among how
            many jobs the runs are divided.
        slurm: parameters of submitit, e.g. {"slurm_partition": "gpu", "timeout_min": 60}; `cluster` is one of them.
        dry_run: run each program up to its first evaluation only, and say how long the grid takes (`Grid.seconds`).
        progress: show a progress bar.

    Returns:
        A `Grid` with histories and tables.

    Raises:
        ValueError: whatever is wrong with the grid or one of its runs and shows without compiling, all in one line,
            before anything runs.

    Example:
        >>> import tempfile, fedjax_srp as srp
        >>> found = srp.grid(
        ...     axes={"method": ["srpfl", "fedrep"], "seed": [0, 1]},
        ...     options={"dataset": "digits", "num_clients": 20, "hidden": [16], "num_rounds": 2, "initial": 5},
        ...     out=tempfile.mkdtemp(), progress=False,
        ... )
        >>> found.to_frame().groupby("method")["cohort_size"].mean().to_dict()
        {'fedrep': 20.0, 'srpfl': 5.0}
    """
    check_integer("workers", workers, 0)
    check_integer("retries", retries, 0)
    if batch is not None:
        check_integer("batch", batch, 1)
    if launcher not in LAUNCHERS:
        raise unknown("launcher", launcher, LAUNCHERS)
    spec, others = Spec(options or {}, axes or {}, variants or {}, exclude), dict[str, Any]()
    if file is not None:
        if axes or options or variants or exclude:
            raise ValueError(f"file={os.fspath(file)!r}: give a file or axes, options, variants and exclude, not both")
        spec, others = read(os.fspath(file))
    folder = writable(out or others.get("out") or "runs/grid")
    sharers = 1 if launcher == "slurm" else max(workers, 1)
    planned = plan(points(spec), folder, batch, max(workers, 1), sharers, _devices(launcher, workers))
    left = [unit for unit in planned if not unit.is_finished()]
    members = [member for unit in planned for member in unit.members]
    say: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if progress else (lambda line: None)
    say(described(planned, left, folder))
    bar = schedule.Bar([] if dry_run else left, len(members), silent=not progress or dry_run or not left)
    where = _launcher(launcher, workers, folder, bar, slurm or others.get("slurm") or {})
    failures, seconds = [], None
    try:
        if dry_run and launcher == "local":
            costs, failures = schedule.measure([same[0] for same in estimate.programs(left).values()], where)
            seconds = None if failures else estimate.seconds(left, costs, max(workers, 1))
        elif not dry_run:
            failures = _summarized(planned, retries) + schedule.run(left, where, bar, retries)
    finally:
        where.close()
        bar.close()
    return result.of(folder, members, failures, seconds)


def plan(
    found: Sequence[Point], folder: Path, batch: int | None, workers: int, sharers: int, devices: int | None
) -> list[Unit]:
    """Checks every point that is not finished, as far as it can without compiling; says which of them run together.

    Args:
        found: the points.
        folder: of the grid.
        batch: points at most in one program; None for a choice by what was measured.
        workers: that are to have work.
        sharers: how many of them share this machine's memory.
        devices: of each of them; None where only they can tell.

    Raises:
        ValueError: the points that are wrong, in one line.
    """
    left = {member.point.id for member in units.members(found, folder) if not member.is_finished()}
    share = -(-len(left) // workers)  # a worker's: more in one program would leave another without work
    datasets, problems, sized = units.Datasets(), Problems(), []
    for alike in units.alike(found):
        simulations = []
        for point in (point for point in alike if point.id in left):
            try:
                simulated = _simulation(point, datasets(point.arguments), devices)
                if not simulations:  # the others are the same program
                    prepare(_request(simulated))
                    Limits(**{name: simulated[name] for name in Limits._fields}).check()
                simulations.append(simulated)
            except ValueError as error:
                problems.add(error, point.name)
        most = min(len(alike), share if batch is None else batch)
        if batch is None and most * alike[0].arguments["num_rounds"] < WORTH_IT:
            most = 1
        is_to_measure = most > 1 and simulations and not problems
        sized.append((alike, _at_once(alike[:most], simulations[0], sharers) if is_to_measure else 1))
    if problems:
        raise problems.error()
    return units.arranged(sized, folder, batch)


def _devices(launcher: str, workers: int) -> int | None:
    """How many devices a run has, where that is known before it runs."""
    if launcher == "slurm":
        return None
    return devices_of(workers) if workers else len(jax.devices())


def _simulation(point: Point, dataset: FederatedSource, devices: int | None) -> dict[str, Any]:
    """The arguments of `simulate`, with devices of this process to plan on where a worker has more."""
    simulated = run_command.simulation(point.arguments, dataset)
    asked = simulated["devices"]
    if asked is None:
        return simulated
    if devices is not None and asked > devices:
        raise ValueError(f"devices={asked}: a run has {devices} here; give no more, or fewer workers")
    return simulated | {"devices": min(asked, len(jax.devices()))}


def _at_once(together: Sequence[Point], simulated: Mapping[str, Any], sharers: int) -> int:
    """How many of these points one program holds, when so many workers have such a program each."""
    request = _request(simulated)._replace(values=units.batch_of(together).values)
    return seeds_at_once(request, len(together), sharers)


def _request(simulated: Mapping[str, Any]) -> Request:
    given = {name: simulated[name] for name in SEEDS_OPTIONS if name in simulated}
    return Request(simulated["algorithm"], simulated["data"], **given)


def _summarized(planned: Sequence[Unit], retries: int) -> list[schedule.Failure]:
    """Writes summaries anew for the costs that are asked for, where nothing is left to run; returns what failed."""
    others = [unit for unit in planned if unit.is_finished() and not unit.is_summarized()]
    return schedule.run(others, InProcess(lambda _: None), schedule.Bar(others, 0, silent=True), retries)


def described(planned: Sequence[Unit], left: Sequence[Unit], folder: Path) -> str:
    """The plan in a line."""
    runs = sum(len(unit.members) for unit in planned)
    missing = sum(not member.is_finished() for unit in left for member in unit.members)
    text = f"{folder}: {runs} runs, {runs - missing} finished"
    others = sum(m.is_finished() and not m.is_summarized() for unit in planned for m in unit.members)
    if others:
        text += f" ({others} with another communication, whose summaries are written anew)"
    if left:
        batches = [len(unit.members) for unit in left if len(unit.members) > 1]
        together = f", {sum(batches)} of them in {len(batches)} batches" if batches else ""
        anew = sum(unit.begins_anew() for unit in left)
        again = f", {anew} of them from the start, having no checkpoint of their own" if anew else ""
        text += f"; {missing} to run{together}{again}, {sum(unit.num_rounds() for unit in left)} rounds at most"
    return text


def _launcher(name: str, workers: int, folder: Path, bar: schedule.Bar, slurm: Mapping[str, Any]) -> Launcher:
    if name == "slurm":
        from fedjax_srp.grids.slurm import Slurm

        return Slurm(folder / units.TOGETHER / "slurm", slurm, bar.say)
    if workers == 0:
        return InProcess(bar.tell)
    return Processes(workers, folder / units.TOGETHER)
