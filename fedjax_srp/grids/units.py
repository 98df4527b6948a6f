"""Units of a grid: points that differ in seed, floats and what judges them run together, as one vmapped program.

A grid's folder remembers which points run together, so that a grid that was killed ends with the bytes of one that was
left alone: how sums are rounded may depend on the size of a batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp import storage
from fedjax_srp.engine.checkpoint import snapshots
from fedjax_srp.grids.points import Point, Problems
from fedjax_srp.run_folder import BOOK, MODELS
from fedjax_srp.runs import folder as run_folder
from fedjax_srp.runs.run import AFTERWARDS, simulated

TOGETHER = ".together"  # folder of what several points share
_PATIENCE = 60.0  # seconds; the book is held for milliseconds


class Member(NamedTuple):
    """A point, and where its run goes."""

    point: Point
    folder: Path

    def is_finished(self) -> bool:
        """Return True if its run is there, as long as it is asked for; with whatever cost in its summary."""
        if not (self.folder / "summary.json").is_file():
            return False
        if self.point.run.models and not (self.folder / MODELS).is_dir():
            return False
        return simulated(self._made()) == simulated(self.point.run.record)

    def is_summarized(self) -> bool:
        """Return True if the summary of its finished run has the cost of communication that is asked for."""
        return self._made().get(AFTERWARDS) == self.point.run.record[AFTERWARDS]

    def begins_anew(self) -> bool:
        """Return True if a run of its own starts again, since the finished one left no checkpoint to go on from.

        That is so where it was one of a batch.
        """
        has_checkpoint = self.point.run.checkpoint and snapshots(self.folder / "checkpoint")
        if has_checkpoint or self.is_finished() or not (self.folder / "summary.json").is_file():
            return False
        known, asked = map(simulated, (self._made(), self.point.run.record))
        if known.get("num_rounds", 0) < asked["num_rounds"]:
            known["num_rounds"] = asked["num_rounds"]
        for name in {**asked, **known}:
            if known.get(name) != asked.get(name):
                raise ValueError(
                    f"is finished with {name}={known.get(name)!r} where {asked.get(name)!r} is asked for, and has no "
                    "checkpoint of its own; give what it had, another out, or delete its folder"
                )
        return True

    def _made(self) -> dict[str, Any]:
        try:
            return run_folder.made(self.folder)
        except storage.DamagedError as error:
            raise ValueError(f"{self.folder}: {error}; delete the folder to have it run again") from None


class Unit(NamedTuple):
    """Points that run as one program, or one point."""

    id: str
    members: tuple[Member, ...]
    shared: Path  # folder of what they share: the checkpoint of a batch, the last error

    def trainings(self) -> dict[Hashable, int]:
        """Return what is trained, each training with its rounds at most; points that differ in judges share one."""
        return {member.point.run.training: member.point.run.num_rounds for member in self.members}

    def num_rounds(self) -> int:
        """Return the rounds of all trainings together, at most."""
        return sum(self.trainings().values())

    def is_finished(self) -> bool:
        """Return True if all points are."""
        return all(member.is_finished() for member in self.members)

    def is_summarized(self) -> bool:
        """Return True if the summaries of its finished runs are, see `Member`."""
        return all(member.is_summarized() for member in self.members if member.is_finished())

    def rounds_kept(self) -> int:
        """Return the rounds of the checkpoint from which its runs go on; 0 where there is none."""
        first, *others = self.members
        if not first.point.run.checkpoint:
            return 0
        place = (self.shared if others else first.folder) / "checkpoint"
        return max((step for part in (place, *place.glob("seeds_*")) for step in snapshots(part)), default=0)

    def begins_anew(self) -> bool:
        """Return True if it is one point that does, see `Member`; a batch goes on from what its points share."""
        return len(self.members) == 1 and self.members[0].begins_anew()


class Batch(NamedTuple):
    """Arguments of `simulate_seeds`."""

    keys: jax.Array
    values: dict[str, jax.Array]  # floats of the algorithm that differ, by their places in it


def batch_of(points: Sequence[Point]) -> Batch:
    """Return what the trainings of a batch differ in: a float that follows from an option, as well as the option."""
    points = [*{point.run.training: point for point in points}.values()]
    keys = jnp.stack([jax.random.key(point.run.seed) for point in points])
    leaves = [point.run.leaves for point in points]
    numbers = [name for name, leaf in leaves[0].items() if isinstance(leaf, float)]
    differing = [name for name in numbers if len({of_point[name] for of_point in leaves}) > 1]
    return Batch(keys, {name: jnp.asarray([float(of_point[name]) for of_point in leaves]) for name in differing})


def alike(points: Iterable[Point]) -> list[list[Point]]:
    """Return points by programs that can run them, see `Run.program`.

    A run that ends by a limit ends when the slowest of its batch does, so it is a program of one training.
    """
    groups: dict[Hashable, list[Point]] = {}
    for point in points:
        is_limited = point.run.target is not None or point.run.time_limit is not None
        groups.setdefault(point.run.training if is_limited else point.run.program(), []).append(point)
    return list(groups.values())


def arranged(groups: Sequence[tuple[Sequence[Point], int]], out: Path, at_most: int | None = None) -> list[Unit]:
    """Divide points among units, those that the folder's book has first, so that a batch keeps its points for good.

    A batch of the book is broken up where some of its points are not asked for any more, where one program cannot run
    them any more (a limit was set), or where it is larger than `at_most`; its finished points stay finished.

    Args:
        groups: points that one program can run, and how many trainings of them are to be in a new one.
        out: folder of the grid.
        at_most: trainings in a program; None for no limit on those of the book.

    Raises:
        ValueError: another process does not let go of the book, a finished run whose record does not read, or a run
            that would lose what is there of it (`Member.begins_anew`).
    """
    of_id = {point.id: point for points, _ in groups for point in points}
    group = {point.id: place for place, (points, _) in enumerate(groups) for point in points}
    with _held(out):
        book = _read(out)
        member = {of_point.point.id: of_point for of_point in members(of_id.values(), out)}
        finished = {name for name in of_id if member[name].is_finished()}

        def is_kept(of_unit: Iterable[str]) -> bool:
            names = {*of_unit}
            asked = names & of_id.keys()
            trainings = {of_id[name].run.training for name in asked}
            fits = len({group[name] for name in asked}) == 1 and (at_most is None or len(trainings) <= at_most)
            return names <= of_id.keys() and (names <= finished or fits)

        kept = {unit: tuple(member[name] for name in of_unit) for unit, of_unit in book.items() if is_kept(of_unit)}
        placed = {of_point.point.id for of_unit in kept.values() for of_point in of_unit}
        for points, at_once in groups:
            new = [member[point.id] for point in points if point.id not in placed]
            alone = [(of_point,) for of_point in new if of_point.point.id in finished]
            for of_unit in (*alone, *_divided([m for m in new if m.point.id not in finished], at_once)):
                kept[_unit_id(of_unit)] = of_unit
        units = [Unit(unit, of_unit, out / TOGETHER / unit) for unit, of_unit in kept.items()]
        _check(units)
        entries = {unit.id: {m.point.id: m.folder.name for m in unit.members} for unit in units}
        others = {unit: of_unit for unit, of_unit in book.items() if not of_unit.keys() & of_id.keys()}
        storage.write_json(out / BOOK, others | entries)
    order = {name: place for place, name in enumerate(of_id)}
    return sorted(units, key=lambda unit: order[unit.members[0].point.id])


def _check(units: Iterable[Unit]) -> None:
    problems = Problems()
    for unit in units:
        kept = unit.rounds_kept()
        for member in unit.members:
            try:
                asked = member.point.run.num_rounds
                if kept > asked and not member.is_finished():
                    places = [] if len(unit.members) == 1 else [f"{str(unit.shared)!r}, which its batch shares"]
                    if not places or (member.folder / "summary.json").is_file():
                        places.append("its folder")
                    raise ValueError(
                        f"has a checkpoint of {kept} rounds where num_rounds={asked} is asked for; give at least "
                        f"{kept}, another out, or delete {' and '.join(places)}"
                    )
                if not kept:
                    member.begins_anew()
            except ValueError as error:
                problems.add(error, member.point.name)
    problems.refuse()


def members(found: Iterable[Point], out: Path) -> list[Member]:
    """Return points with their folders: those that the book of a folder has, or new ones."""
    folders = {name: folder for of_unit in _read(out).values() for name, folder in of_unit.items()}
    return [Member(point, out / folders.get(point.id, point.folder)) for point in found]


def _divided(members: Sequence[Member], at_once: int) -> list[tuple[Member, ...]]:
    """In turn, into as few parts of equally many trainings as `at_once` allows."""
    trainings: dict[Hashable, list[Member]] = {}
    for member in members:
        trainings.setdefault(member.point.run.training, []).append(member)
    num_parts = -(-len(trainings) // at_once)
    sizes = [len(trainings) // num_parts + (part < len(trainings) % num_parts) for part in range(num_parts)]
    rest = iter(trainings.values())
    return [tuple(itertools.chain.from_iterable(itertools.islice(rest, size))) for size in sizes]


def _unit_id(of_unit: Iterable[Member]) -> str:
    return hashlib.sha256(" ".join(member.point.id for member in of_unit).encode()).hexdigest()[:8]


def _read(out: Path) -> dict[str, dict[str, str]]:
    """The book of a folder; empty where there is none, or, with a word, if it is damaged.

    Raises:
        ValueError: it is no book of a grid.
    """
    if not (out / BOOK).is_file():
        return {}
    if (out / BOOK).read_bytes().strip(b"{}\n ") and not storage.has_checksum(out / BOOK):
        raise ValueError(f"out={str(out)!r}: its {BOOK} was not written by fedjax_srp; give another out")
    try:
        return dict(storage.read_json(out / BOOK))
    except storage.DamagedError as error:
        print(f"{out}: {error}; batches are made anew, finished runs stay", file=sys.stderr)
        return {}


@contextlib.contextmanager
def _held(out: Path) -> Iterator[None]:
    """Holds the book of a folder, as soon as whoever holds it lets go of it."""
    patience = time.monotonic() + _PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(storage.held(out / TOGETHER, "out"))
                break
            except storage.HeldError:
                if time.monotonic() > patience:
                    raise
                time.sleep(0.05)
        yield
