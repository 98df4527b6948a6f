"""Units of a grid: points that differ only in seed, floats and evaluation are batched into one vmapped program.

The index in a grid's folder records which points run together, since the rounding of sums may depend on the batch size:
a resumed grid ends with the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.driver.checkpoint import snapshots
from fedjax_srp.lab.grids.points import Point, Problems
from fedjax_srp.lab.runs.folder import read_record
from fedjax_srp.lab.runs.run import SUMMARY_OPTION, differing
from fedjax_srp.parts.checks import printable, short
from fedjax_srp.parts.files import open_file
from fedjax_srp.results import sealed_folders as storage
from fedjax_srp.results.folder import GRID_INDEX, has_models, is_finished

SHARED = ".together"  # folder of files that several points share
_LOCK_TIMEOUT = 60.0  # seconds; the index is locked for milliseconds


class Member(NamedTuple):
    """A point with its run folder."""

    point: Point
    folder: Path

    def is_finished(self) -> bool:
        """Return True if its folder holds the run with all its rounds, with any communication cost in its summary."""
        if not is_finished(self.folder):
            return False
        if self.point.run.models and not has_models(self.folder):
            return False
        return not differing(self._recorded_options(), self.point.run.record)

    def has_current_summary(self) -> bool:
        """Return True if the summary of its finished run has the requested communication cost."""
        return (
            self._recorded_options().get(SUMMARY_OPTION)
            == self.point.run.record[SUMMARY_OPTION]
        )

    def must_restart(self) -> bool:
        """Return True if it must run again from round 0: it finished in a batch and has no checkpoint of its own.

        A ValueError says that running it again would lose its result.
        """
        has_checkpoint = self.point.run.checkpoint and snapshots(
            self.folder / "checkpoint"
        )
        if has_checkpoint or self.is_finished() or not is_finished(self.folder):
            return False
        recorded, requested = self._recorded_options(), self.point.run.record
        is_longer = recorded.get("num_rounds", 0) < requested["num_rounds"]
        for name in differing(recorded, requested):
            if name != "num_rounds" or not is_longer:
                raise ValueError(
                    f"is finished with {name}={recorded.get(name)!r}, not {requested.get(name)!r}, and has no "
                    "checkpoint of its own; give the former value, another out, or delete its folder"
                )
        return True

    def _recorded_options(self) -> dict[str, Any]:
        try:
            return read_record(self.folder)
        except storage.DamagedError as error:
            raise ValueError(
                f"{self.folder}: {error}; delete the folder to have it run again"
            ) from None


class Unit(NamedTuple):
    """Points that run as one program; often a single one."""

    id: str
    members: tuple[Member, ...]
    shared: Path  # folder of the checkpoint of a batch and of the last error

    def trainings(self) -> dict[Hashable, int]:
        """Return training -> its rounds at most; points that differ only in their evaluation share a training."""
        return {
            member.point.run.training: member.point.run.num_rounds
            for member in self.members
        }

    def num_rounds(self) -> int:
        """Return the rounds of all trainings together, at most."""
        return sum(self.trainings().values())

    def is_finished(self) -> bool:
        """Return True if all of its points are finished."""
        return all(member.is_finished() for member in self.members)

    def has_current_summary(self) -> bool:
        """Return True if the summaries of its finished runs have the requested communication cost."""
        return all(
            member.has_current_summary()
            for member in self.members
            if member.is_finished()
        )

    def checkpoint_rounds(self) -> int:
        """Return the rounds of its latest checkpoint, 0 without one."""
        first, *others = self.members
        if not first.point.run.checkpoint:
            return 0
        folder = (self.shared if others else first.folder) / "checkpoint"
        return max(
            (
                step
                for part in (folder, *folder.glob("seeds_*"))
                for step in snapshots(part)
            ),
            default=0,
        )

    def must_restart(self) -> bool:
        """Return True for a single point that must, see `Member`; a batch resumes from its shared checkpoint."""
        return len(self.members) == 1 and self.members[0].must_restart()


class Batch(NamedTuple):
    """Arguments of `simulate_seeds`."""

    keys: jax.Array
    values: dict[str, np.ndarray]  # dotted name of a float of the algorithm -> its values


def batch_of(points: Sequence[Point]) -> Batch:
    """Return the keys and floats in which the trainings of a batch differ, including floats derived from options."""
    points = [*{point.run.training: point for point in points}.values()]
    keys = jnp.stack([jax.random.key(point.run.seed) for point in points])
    leaves = [point.run.leaves for point in points]
    numbers = [name for name, leaf in leaves[0].items() if isinstance(leaf, float)]
    differing = [
        name for name in numbers if len({of_point[name] for of_point in leaves}) > 1
    ]
    return Batch(
        keys,
        {
            name: np.asarray([float(of_point[name]) for of_point in leaves])
            for name in differing
        },
    )


def group_by_program(points: Iterable[Point]) -> list[list[Point]]:
    """Group points that one program can run, see `Run.program`.

    A run with a target or a time limit would end with the slowest of its batch, so its program has one training.
    """
    groups: dict[Hashable, list[Point]] = {}
    for point in points:
        is_limited = point.run.target is not None or point.run.time_limit is not None
        groups.setdefault(
            point.run.training if is_limited else point.run.program(), []
        ).append(point)
    return list(groups.values())


def assign_units(
    groups: Sequence[tuple[Sequence[Point], int]], out: Path, at_most: int | None = None
) -> list[Unit]:
    """Divide points among units, and keep the batches of the folder's index.

    An indexed batch is broken up if some of its points are no longer requested, if one program can no longer run them
    (a limit was set), or if it is larger than `at_most`; its finished points stay finished.

    Args:
        groups: points that one program can run, with the number of trainings in a new unit of them.
        out: folder of the grid.
        at_most: most trainings in a unit; None keeps indexed units of any size.

    Raises:
        ValueError: another process keeps the index locked, the record of a finished run is damaged, or a run would lose
            its results (`Member.must_restart`).
    """
    of_id = {point.id: point for points, _ in groups for point in points}
    group = {point.id: i for i, (points, _) in enumerate(groups) for point in points}
    with _index_lock(out):
        index = _read_index(out)
        members = {member.point.id: member for member in as_members(of_id.values(), out)}
        finished = {name for name, member in members.items() if member.is_finished()}

        def is_kept(unit: set[str]) -> bool:
            if not unit <= of_id.keys():
                return False
            num_trainings = len({of_id[point].run.training for point in unit})
            is_one_program = len({group[point] for point in unit}) == 1
            return unit <= finished or (
                is_one_program and (at_most is None or num_trainings <= at_most)
            )

        kept = {
            name: tuple(members[point] for point in unit)
            for name, unit in index.items()
            if is_kept({*unit})
        }
        assigned = {member.point.id for of_unit in kept.values() for member in of_unit}
        for points, at_once in groups:
            new = [members[point.id] for point in points if point.id not in assigned]
            alone = [(member,) for member in new if member.point.id in finished]
            for of_unit in (
                *alone,
                *_split_evenly([m for m in new if m.point.id not in finished], at_once),
            ):
                kept[_unit_id(of_unit)] = of_unit
        units = [
            Unit(unit_id, of_unit, out / SHARED / unit_id)
            for unit_id, of_unit in kept.items()
        ]
        _check_checkpoints(units)
        entries = {
            unit.id: {m.point.id: m.folder.name for m in unit.members} for unit in units
        }
        others = {
            unit_id: folders
            for unit_id, folders in index.items()
            if not folders.keys() & of_id.keys()
        }
        storage.write_json(out / GRID_INDEX, others | entries)
    order = {name: i for i, name in enumerate(of_id)}
    return sorted(units, key=lambda unit: order[unit.members[0].point.id])


def _check_checkpoints(units: Iterable[Unit]) -> None:
    """Refuse runs that would lose rounds: of a checkpoint with more rounds than requested, or by a restart."""
    problems = Problems()
    for unit in units:
        kept = unit.checkpoint_rounds()
        for member in unit.members:
            try:
                requested = member.point.run.num_rounds
                if kept > requested and not member.is_finished():
                    places = (
                        []
                        if len(unit.members) == 1
                        else [f"{str(unit.shared)!r}, which its batch shares"]
                    )
                    if not places or is_finished(member.folder):
                        places.append("its folder")
                    raise ValueError(
                        f"num_rounds={requested}, but its checkpoint has {kept} rounds; give at least {kept}, another "
                        f"out, or delete {' and '.join(places)}"
                    )
                if not kept:
                    member.must_restart()
            except ValueError as error:
                problems.add(error, member.point.name)
    problems.raise_if_any()


def as_members(points: Iterable[Point], out: Path) -> list[Member]:
    """Return points with their folders in a grid's folder, from its index or new."""
    known = {
        name: folder
        for folders in _read_index(out).values()
        for name, folder in folders.items()
    }
    return [Member(point, out / known.get(point.id, point.folder)) for point in points]


def _split_evenly(members: Sequence[Member], at_once: int) -> list[tuple[Member, ...]]:
    """Split members in order into the fewest parts of at most `at_once` trainings, of nearly equal numbers."""
    trainings: dict[Hashable, list[Member]] = {}
    for member in members:
        trainings.setdefault(member.point.run.training, []).append(member)
    num_parts = -(-len(trainings) // at_once)
    sizes = [
        len(trainings) // num_parts + (part < len(trainings) % num_parts)
        for part in range(num_parts)
    ]
    rest = iter(trainings.values())
    return [
        tuple(itertools.chain.from_iterable(itertools.islice(rest, size)))
        for size in sizes
    ]


def _unit_id(of_unit: Iterable[Member]) -> str:
    return hashlib.sha256(
        " ".join(member.point.id for member in of_unit).encode()
    ).hexdigest()[:8]


def _read_index(out: Path) -> dict[str, dict[str, str]]:
    """Return unit id -> point id -> folder name; empty without an index, or, with a printed line, if it is damaged.

    Raises:
        ValueError: the file is not the index of a grid.
    """
    if not (out / GRID_INDEX).is_file():
        return {}
    with open_file(out / GRID_INDEX) as file:
        is_empty = not file.read().strip(b"{}\n ")
    if not is_empty and not storage.has_checksum(out / GRID_INDEX):
        raise ValueError(
            f"out={str(out)!r}: its {GRID_INDEX} was not written by fedjax_srp; give another out"
        )
    try:
        index = dict(storage.read_json(out / GRID_INDEX))
    except storage.DamagedError as error:
        line = f"{out}: {error}; batches will be formed again, finished runs are kept"
        print(printable(line), file=sys.stderr)
        return {}
    foreign = next((name for name in _names_in(index) if not _is_plain_name(name)), None)
    if foreign is not None:
        problem = f"its {GRID_INDEX} names {short(foreign)}, which is no folder within it"
        raise ValueError(f"out={str(out)!r}: {problem}; give another out")
    return index


def _names_in(index: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the names in an index that become folders."""
    for unit_id, folders in index.items():
        yield unit_id
        yield from folders.values() if isinstance(folders, Mapping) else [None]


def _is_plain_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and PurePath(name).name == name
        and "\0" not in name
    )


@contextlib.contextmanager
def _index_lock(out: Path) -> Iterator[None]:
    """Lock the index of a folder, and wait for other processes to release it."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(storage.held(out / SHARED, "out"))
                break
            except storage.FolderLockedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield
