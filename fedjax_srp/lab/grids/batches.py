"""Units of a grid: points that differ only in seed, floats and evaluation run as one vmapped program.

The index in a grid's folder records which points run together, since the rounding of sums may
depend on the batch size: a resumed grid ends with the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import re
import sys
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.driver.checkpoint import snapshots
from fedjax_srp.lab.grids.points import Point, Problems
from fedjax_srp.lab.runs.run import Run
from fedjax_srp.parts.checks import printable, short
from fedjax_srp.parts.files import open_file
from fedjax_srp.results import json_files
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.folder import (
    CHECKPOINT,
    GRID_INDEX,
    has_cost,
    has_models,
    is_finished,
    read_config,
)
from fedjax_srp.results.locks import FolderLockedError, held

SHARED = ".together"  # folder of files that several points share
_LOCK_TIMEOUT = 60.0  # seconds; the index is locked for milliseconds
_FOLDER_NAME = re.compile(r"(?!\.{1,2}$)[\w.=+-]+", re.ASCII)


class Member(NamedTuple):
    """A point with its run folder."""

    point: Point
    folder: Path

    def is_finished(self) -> bool:
        """Return True if its folder holds the run with all its rounds.

        Its summary may have another communication cost.
        """
        run = self.point.run
        if not is_finished(self.folder) or (run.models and not has_models(self.folder)):
            return False
        known = self._recorded()
        return not run.differing(known) and not run.other_limits(known)

    def has_current_summary(self) -> bool:
        """Return True if the summary of its finished run has the requested communication cost."""
        return has_cost(self.folder, self.point.run.communication)

    def must_restart(self) -> bool:
        """Return True if it must run again from round 0.

        It finished in a batch, and has no checkpoint of its own. A ValueError says that running it
        again would lose its result.
        """
        if self.is_finished() or not is_finished(self.folder):
            return False
        if self.point.run.checkpoint and snapshots(self.folder / CHECKPOINT):
            return False
        run = self.point.run
        known = self._recorded()
        had = run.other_limits(known)
        different = {name: value for name, (_, value) in run.differing(known).items()}
        if (had.get("num_rounds") or math.inf) < run.settings.num_rounds:
            del had["num_rounds"]
        for name, value in (different | had).items():
            raise ValueError(
                f"is finished with {printable(name)}={value!r} and has no checkpoint of its own; give that value, "
                "another out, or delete its folder"
            )
        return True

    def _recorded(self) -> dict[str, Any]:
        try:
            return read_config(self.folder)
        except DamagedError as error:
            raise ValueError(
                f"{self.folder}: {error}; delete the folder to have it run again"
            ) from None


class Unit(NamedTuple):
    """Points that run as one program; often a single one."""

    id: str
    members: tuple[Member, ...]
    shared: Path  # folder of the checkpoint of a batch and of the last error

    @property
    def names(self) -> list[str]:
        """The names of its points."""
        return [member.point.name for member in self.members]

    @property
    def runs(self) -> list[Run]:
        """The runs of its points."""
        return [member.point.run for member in self.members]

    def trainings(self) -> dict[Hashable, int]:
        """Return training -> its rounds at most.

        Points that differ only in their evaluation share a training.
        """
        return {run.training: run.settings.num_rounds for run in self.runs}

    def num_rounds(self) -> int:
        """Return the rounds of all trainings together, at most."""
        return sum(self.trainings().values())

    def is_finished(self) -> bool:
        """Return True if all of its points are finished."""
        return all(member.is_finished() for member in self.members)

    def has_current_summary(self) -> bool:
        """Return True if no summary of its finished runs must be written anew."""
        return all(
            not member.is_finished() or member.has_current_summary()
            for member in self.members
        )

    def checkpoint_rounds(self) -> int:
        """Return the rounds of its latest checkpoint, 0 without one."""
        first, *others = self.members
        if not first.point.run.checkpoint:
            return 0
        folder = first.folder / CHECKPOINT
        if others:
            folder = self.shared / CHECKPOINT
        steps = [0]
        for part in (folder, *folder.glob("seeds_*")):
            steps += snapshots(part)
        return max(steps)

    def must_restart(self) -> bool:
        """Return True for a single point that must; a batch resumes from its shared checkpoint."""
        return len(self.members) == 1 and self.members[0].must_restart()


class Batch(NamedTuple):
    """Arguments of `simulate_seeds`."""

    keys: jax.Array
    values: dict[str, np.ndarray]  # dotted name of a float of the algorithm -> its values


def batch_of(points: Sequence[Point]) -> Batch:
    """Return the keys and floats in which the trainings of a batch differ.

    They include floats derived from options.
    """
    runs = {point.run.training: point.run for point in points}.values()
    keys = jnp.stack([jax.random.key(run.seed) for run in runs])
    leaves = [run.leaves for run in runs]
    values = {}
    for name, leaf in leaves[0].items():
        if isinstance(leaf, float):
            numbers = np.asarray([float(each[name]) for each in leaves])
            if (numbers != numbers[0]).any():
                values[name] = numbers
    return Batch(keys, values)


def group_by_program(points: Iterable[Point]) -> list[list[Point]]:
    """Group points that one program can run, see `Run.program`.

    A run with a target or a time limit would end with the slowest of its batch, so its program has
    one training.
    """
    groups: dict[Hashable, list[Point]] = {}
    for point in points:
        run = point.run
        program = run.program
        if run.settings.target is not None or run.settings.time_limit is not None:
            program = run.training
        groups.setdefault(program, []).append(point)
    return list(groups.values())


def assign_units(
    groups: Sequence[tuple[Sequence[Point], int]], out: Path, at_most: int | None = None
) -> list[Unit]:
    """Divide points among units, and keep the batches of the folder's index.

    An indexed batch is broken up if some of its points are no longer requested, if one program can
    no longer run them (a limit was set), or if it is larger than `at_most`; its finished points
    stay finished.

    Args:
        groups: points that one program can run, with the number of trainings in a new unit.
        out: folder of the grid.
        at_most: most trainings in a unit; None keeps indexed units of any size.

    Raises:
        ValueError: another process keeps the index locked, the record of a finished run is damaged,
            or a run would lose its results (`Member.must_restart`).
    """
    requested = [point for points, _ in groups for point in points]
    group_of: dict[str, int] = {}
    for number, (points, _) in enumerate(groups):
        group_of |= {point.id: number for point in points}
    with _index_lock(out):
        index = _read_index(out)
        members = {member.point.id: member for member in as_members(requested, out)}
        finished = {name for name, member in members.items() if member.is_finished()}
        batches: list[list[Member]] = []
        others = dict(members)
        for folders in index.values():
            names = folders.keys()
            if not names <= members.keys():
                continue
            batch = [members[name] for name in names]
            num_trainings = len({member.point.run.training for member in batch})
            is_small = at_most is None or num_trainings <= at_most
            is_one_program = len({group_of[name] for name in names}) == 1
            if names <= finished or (is_small and is_one_program):
                batches.append(batch)
                for name in names:
                    others.pop(name, None)
        for points, size in groups:
            of_group = [others[point.id] for point in points if point.id in others]
            left = [member for member in of_group if member.point.id not in finished]
            batches += [[member] for member in of_group if member.point.id in finished]
            batches += _split_evenly(left, size)
        units = []
        for batch in batches:
            unit_id = _unit_id(batch)
            units.append(Unit(unit_id, tuple(batch), out / SHARED / unit_id))
        _check_checkpoints(units)
        entries = {
            unit_id: folders
            for unit_id, folders in index.items()
            if not folders.keys() & members.keys()
        }
        for unit in units:
            entries[unit.id] = {m.point.id: m.folder.name for m in unit.members}
        json_files.write_json(out / GRID_INDEX, entries)
    order = {name: place for place, name in enumerate(members)}
    return sorted(units, key=lambda unit: order[unit.members[0].point.id])


def _check_checkpoints(units: Iterable[Unit]) -> None:
    """Refuse runs that would lose rounds.

    These are runs with a checkpoint of more rounds than requested, or with no checkpoint.
    """
    problems = Problems()
    for unit in units:
        num_rounds = unit.checkpoint_rounds()
        for member in unit.members:
            try:
                if (
                    num_rounds > member.point.run.settings.num_rounds
                    and not member.is_finished()
                ):
                    raise _too_few_rounds(unit, member, num_rounds)
                if not num_rounds:
                    member.must_restart()
            except ValueError as error:
                problems.add(error, member.point.name)
    problems.raise_if_any()


def _too_few_rounds(unit: Unit, member: Member, num_rounds: int) -> ValueError:
    places = []
    if len(unit.members) > 1:
        places.append(f"{str(unit.shared)!r}, which its batch shares")
    if not places or is_finished(member.folder):
        places.append("its folder")
    return ValueError(
        f"num_rounds={member.point.run.settings.num_rounds}, but its checkpoint has {num_rounds} rounds; "
        f"give at least {num_rounds}, another out, or delete {' and '.join(places)}"
    )


def as_members(points: Iterable[Point], out: Path) -> list[Member]:
    """Return points with their folders in a grid's folder, from its index or new."""
    folders: dict[str, str] = {}
    for of_unit in _read_index(out).values():
        folders |= of_unit
    return [Member(point, out / folders.get(point.id, point.folder)) for point in points]


def _split_evenly(members: Sequence[Member], at_once: int) -> Iterator[list[Member]]:
    """Split members in order into the fewest parts of at most `at_once` trainings.

    The parts have nearly equal numbers of trainings.
    """
    trainings: dict[Hashable, list[Member]] = {}
    for member in members:
        trainings.setdefault(member.point.run.training, []).append(member)
    if not trainings:
        return
    rest = iter(trainings.values())
    num_parts = -(-len(trainings) // at_once)
    for part in np.array_split(np.arange(len(trainings)), num_parts):
        of_part = itertools.islice(rest, len(part))
        yield list(itertools.chain.from_iterable(of_part))


def _unit_id(members: Iterable[Member]) -> str:
    text = " ".join(member.point.id for member in members)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _read_index(out: Path) -> dict[str, dict[str, str]]:
    """Return unit id -> point id -> folder name.

    It is empty without an index, or, with a printed line, if the index is damaged.

    Raises:
        ValueError: the file is not the index of a grid.
    """
    file = out / GRID_INDEX
    if not file.is_file():
        return {}
    with open_file(file) as content:
        is_empty = not content.read().strip(b"{}\n ")
    if not is_empty and not json_files.has_checksum(file):
        raise ValueError(
            f"out={str(out)!r}: its {GRID_INDEX} was not written by fedjax_srp; give another out"
        )
    try:
        index = json_files.read_json(file)
    except DamagedError as error:
        line = f"{out}: {error}; batches will be formed again, finished runs are kept"
        print(printable(line), file=sys.stderr)
        return {}
    for unit_id, folders in index.items():
        names = [unit_id, None]
        if isinstance(folders, dict):
            names = [unit_id, *folders.values()]
        for name in names:
            if not (isinstance(name, str) and _FOLDER_NAME.fullmatch(name)):
                raise ValueError(
                    f"out={str(out)!r}: its {GRID_INDEX} names {short(name)}, which is no folder "
                    "within it; give another out"
                )
    return index


@contextlib.contextmanager
def _index_lock(out: Path) -> Iterator[None]:
    """Lock the index of a folder, and wait for other processes to release it."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    with contextlib.ExitStack() as lock:
        while True:
            try:
                lock.enter_context(held(out / SHARED, "out"))
                break
            except FolderLockedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield
