"""How long a grid takes, from short runs of its programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from fedjax_srp.commands import run as run_command
from fedjax_srp.grids.units import Unit
from fedjax_srp.grids.work import Cost


def programs(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """Units by what is compiled for them: those that differ in seeds, in floats and in limits alone share it."""
    found: dict[str, list[Unit]] = {}
    for unit in units:
        point = unit.members[0].point
        left_out = {*point.floats, "seed", *run_command.LIMITS}
        rest = {name: value for name, value in point.record.items() if name not in left_out}
        rest["points"] = len(unit.members)
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(unit)
    return found


def seconds(units: Sequence[Unit], costs: Mapping[str, Cost], workers: int) -> float:
    """Seconds until the last of the workers is ready; each takes the next unit, and compiles what is new to it.

    Args:
        units: in their order.
        costs: of one unit of each program, by its id.
        workers: how many.
    """
    of_unit = {}
    for program, same in programs(units).items():
        of_unit |= {unit.id: (program, next(costs[other.id] for other in same if other.id in costs)) for unit in same}
    ready, compiled = [0.0] * workers, [set[str]() for _ in range(workers)]
    for unit in units:
        program, cost = of_unit[unit.id]
        first = ready.index(min(ready))
        ready[first] += cost.compile * (program not in compiled[first])
        ready[first] += cost.per_round * unit.num_rounds() / len(unit.members)
        compiled[first].add(program)
    return max(ready)
