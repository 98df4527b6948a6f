"""Runs the units of a grid: in turn, past failures, with another try where it is asked for."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedjax_srp.bars import tqdm
from fedjax_srp.grids.launchers import Done, Event, Launcher, Rounds
from fedjax_srp.grids.units import Unit

_SHAPE = "{desc}: {n_fmt} of {total_fmt} rounds |{bar}| {elapsed}<{remaining}"
_WAIT = 1.0  # seconds, until what another process runs is looked at again


class Bar:
    """How far the whole grid is."""

    def __init__(self, units: Sequence[Unit], num_points: int, silent: bool):
        self._points, self._finished, self._failed = num_points, num_points - _size(units), 0
        self._rounds = dict.fromkeys((unit.id for unit in units), 0)
        total = sum(unit.num_rounds() for unit in units)
        self._bar = tqdm(total=total, desc=self._words(), bar_format=_SHAPE, disable=silent, smoothing=0)

    def tell(self, event: Event) -> None:
        """Shows what is new."""
        unit, before = event.unit, self._rounds[event.unit.id]
        now = event.completed if isinstance(event, Rounds) else before if event.error else unit.num_rounds()
        if isinstance(event, Done):
            self._finished += 0 if event.error else len(unit.members)
            self._describe()
        self._rounds[unit.id] = max(now, before)
        self._bar.update(self._rounds[unit.id] - before)

    def fails(self, unit: Unit) -> None:
        """Counts a unit that is not tried again."""
        self._failed += len(unit.members)
        self._describe()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if not self._bar.disable:
            tqdm.write(line, file=sys.stderr)

    def _describe(self) -> None:
        self._bar.set_description_str(self._words())

    def _words(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._finished} of {self._points} runs{failed}"

    def close(self) -> None:
        """Leaves it as it stands."""
        self._bar.close()


class Failure(NamedTuple):
    """A point that could not be run."""

    name: str
    error: str  # in one line


def run(units: Sequence[Unit], launcher: Launcher, bar: Bar, retries: int) -> list[Failure]:
    """Runs units; what fails is tried again after all others, so many times."""
    failures = []
    for done in _performed("run", units, launcher, bar.tell, retries, bar.say):
        if done.error is not None:
            bar.fails(done.unit)
            failures += [Failure(member.point.name, done.error) for member in done.unit.members]
    return failures


def measure(units: Sequence[Unit], launcher: Launcher) -> tuple[dict[str, Any], list[Failure]]:
    """The cost of units by their ids, and the units that could not be measured, each by its first point."""
    ignore: Callable[[Any], None] = lambda _: None  # noqa: E731
    costs, failures = {}, []
    for done in _performed("measure", units, launcher, ignore, 0, ignore):
        if done.error is None:
            costs[done.unit.id] = done.result
        else:
            failures.append(Failure(done.unit.members[0].point.name, done.error))
    return costs, failures


def _performed(
    task: str,
    units: Sequence[Unit],
    launcher: Launcher,
    tell: Callable[[Event], None],
    retries: int,
    say: Callable[[str], None],
) -> Iterator[Done]:
    """What became of each unit in the end."""
    waiting, tries, running = deque(units), dict.fromkeys((unit.id for unit in units), 0), 0
    elsewhere: list[Unit] = []
    while waiting or running or elsewhere:
        while waiting and launcher.has_room():
            launcher.start(task, waiting.popleft())
            running += 1
        if not running:  # others have the rest
            time.sleep(_WAIT)
            waiting, elsewhere = deque(elsewhere), []
            continue
        event = launcher.next()
        if isinstance(event, Done):
            running -= 1
            if event.is_elsewhere:
                elsewhere.append(event.unit)
                continue
            if event.error is not None and tries[event.unit.id] < retries:
                tries[event.unit.id] += 1
                waiting.append(event.unit)
                say(f"again later: {event.unit.members[0].point.name}: {event.error}")
                continue
            tell(event)
            yield event
        else:
            tell(event)


def _size(units: Sequence[Unit]) -> int:
    return sum(len(unit.members) for unit in units)
