"""Work of a program on a device, summed over its loops, and its time by a roofline model.

Kernels, loops, bytes and operations are those of the compiled program. Seconds are modelled: a kernel takes at least
the time of its bytes at a share of the memory's bandwidth, of its operations at the rate of products, and of a launch;
an iteration of a loop also takes the time in which the host or the graph decides about the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from gpu_program import thunks
from gpu_program.cost import FREE, Costs
from gpu_program.hlo import Instruction, Module
from gpu_program.targets import Target
from gpu_program.thunks import Thunk
from gpu_program.trips import Loop, Place

BANDWIDTH_SHARE = 0.8  # of the data sheet's bandwidth, reached by a kernel that only copies
KERNEL, HOST_DECISION, GRAPH_DECISION = 2.2e-6, 20e-6, 3e-6  # seconds: least time of a kernel; of an iteration


class LoopCost(NamedTuple):
    """Cost of a loop, and of one of its iterations without nested loops."""

    name: str
    trips: int
    in_graph: bool  # False: the host asks the device before every iteration, unless it knows the trips
    known: bool  # the compiler knows the number of trips
    kernels: int
    num_bytes: float
    flops: float
    seconds: float


@dataclasses.dataclass
class Totals:
    """Cost of a program, or of a part of it, on one device."""

    kernels: int = 0
    host_syncs: int = 0
    num_bytes: float = 0
    flops: float = 0
    exchanged: float = 0
    seconds: float = 0
    loops: list[LoopCost] = dataclasses.field(default_factory=list)

    def add(self, other: Totals, times: int) -> None:
        """Adds a part that runs `times` times; its loops are listed once."""
        for field in ("kernels", "host_syncs", "num_bytes", "flops", "exchanged", "seconds"):
            setattr(self, field, getattr(self, field) + times * getattr(other, field))
        self.loops += other.loops

    def at_bandwidth(self, target: Target) -> float:
        """Seconds that the bytes alone take at the bandwidth of the data sheet."""
        return self.num_bytes / target.bandwidth


def account(module: Module, steps: list[Thunk], loops: Sequence[Loop], target: Target, package: str) -> Totals:
    """Sums a program up.

    Args:
        module: its optimised text.
        steps: its thunks.
        loops: with the trips that the compiler does not know.
        target: the device.
        package: folder whose files' frames identify loops.

    Raises:
        ValueError: a loop that is not among `loops`; a text and steps that do not belong together.
    """
    return _Accountant(module, loops, target, package).sequence(module.entry, steps)[1]


class _Accountant:
    def __init__(self, module: Module, loops: Sequence[Loop], target: Target, package: str):
        self.module, self.target, self.package, self.loops = module, target, package, loops
        self.costs = Costs(module)

    def sequence(self, computation: str, steps: list[Thunk]) -> tuple[Totals, Totals]:
        """Cost of a computation without and with its loops."""
        instructions = list(self.module.computations[computation].values())
        nested = [i for i in instructions if i.op in ("while", "conditional")]
        found = thunks.loops(steps)
        if [i.op for i in nested] != [thunk.kind.lower() for thunk in found]:
            raise ValueError(
                f"computation {computation} has {[i.op for i in nested]} and its thunks {[t.kind for t in found]}; "
                "give text and thunks of one compilation"
            )
        own = self.straight(computation, instructions, thunks.kernels(steps))
        totals = Totals()
        totals.add(own, 1)
        for instruction, thunk in zip(nested, found, strict=True):
            inner = self.loop if instruction.op == "while" else self.conditional
            totals.add(inner(instruction, thunk), 1)
        return own, totals

    def straight(self, computation: str, instructions: list[Instruction], kernels: int) -> Totals:
        """Cost without loops. A launch that the text does not show, such as a copy, takes the time of a kernel."""
        totals, shown = Totals(kernels=kernels), 0
        for instruction in instructions:
            if instruction.op in (*FREE, "while", "conditional") or instruction.op.endswith("-done"):
                continue
            spent = self.costs.of(computation, instruction)
            shown += 1
            totals.num_bytes += spent.num_bytes
            totals.flops += spent.flops
            totals.exchanged += spent.exchanged
            totals.seconds += self.seconds(spent.num_bytes, spent.flops, spent.exchanged)
        totals.seconds += KERNEL * max(0, kernels - shown)
        return totals

    def seconds(self, num_bytes: float, flops: float, exchanged: float) -> float:
        target = self.target
        memory = num_bytes / (BANDWIDTH_SHARE * target.bandwidth)
        return max(KERNEL, memory, flops / target.product_rate, exchanged / (BANDWIDTH_SHARE * target.link))

    def loop(self, loop: Instruction, thunk: Thunk) -> Totals:
        body = loop.called("body")
        if body is None or "body" not in thunk.parts:
            raise ValueError(f"loop {loop.name} lacks its body; give the whole text and its thunks")
        place, known = self.place(loop), loop.known_trips
        trips = self.trips(loop, place) if known is None else known
        tested = trips + 1 if known is None else 0  # no test if the compiler knows the trips
        test = thunks.kernels(thunk.parts.get("condition", []))
        totals = Totals()
        totals.add(Totals(kernels=test, seconds=test * KERNEL), tested)
        if trips:  # the trips of loops within a loop without trips are unknown
            own, inside = self.sequence(body, thunk.parts["body"])
            totals.add(inside, trips)
            spent = own.num_bytes, own.flops, own.seconds
            mine = LoopCost(self.name(loop, place), trips, thunk.in_graph, known is not None, own.kernels, *spent)
            totals.loops.insert(0, mine)
        if thunk.in_graph:
            totals.seconds += trips * GRAPH_DECISION
        elif known is None:
            totals.host_syncs += tested
            totals.seconds += tested * HOST_DECISION
        return totals

    def conditional(self, choice: Instruction, thunk: Thunk) -> Totals:
        """Cost of the most expensive branch; outside of a graph, the host chooses."""
        bodies = choice.attributes.partition("branch_computations={")[2].partition("}")[0].replace("%", "")
        names = [name.strip() for name in bodies.split(",") if name.strip()]
        names = names or [n for n in map(choice.called, ("true_computation", "false_computation")) if n]
        parts = list(thunk.parts.values())
        if not names or len(names) != len(parts):
            raise ValueError(f"conditional {choice.name} has branches {names} and {len(parts)} sequences of thunks")
        branches = (self.sequence(name, part)[1] for name, part in zip(names, parts, strict=True))
        costliest = max(branches, key=lambda branch: branch.seconds)
        costliest.host_syncs += not thunk.in_graph
        costliest.seconds += GRAPH_DECISION if thunk.in_graph else HOST_DECISION
        return costliest

    def place(self, loop: Instruction) -> Place:
        """Source of a loop: the frames of the package, innermost first."""
        stack = self.module.stack(loop)
        return tuple((frame.file, frame.line) for frame in stack if frame.file.startswith(self.package))

    def trips(self, loop: Instruction, place: Place) -> int:
        """Number of trips of the loop with this source."""
        found = {known.trips for known in self.loops if known.place and place[: len(known.place)] == known.place}
        if len(found) != 1:
            raise ValueError(
                f"loop {self.name(loop, place)} has {'several numbers' if found else 'an unknown number'} of trips "
                f"{sorted(found)}; loops are identified by their line in the source, so write it on its own line"
            )
        return found.pop()

    def name(self, loop: Instruction, place: Place) -> str:
        """Functions that call a loop, outermost first, starting with the pass over a cohort."""
        names: list[str] = []
        for frame in self.module.stack(loop) if place else ():
            if frame.function.startswith("cohort_pass") and names:
                break
            if frame.file.startswith(self.package) and not frame.function.endswith(".__call__"):
                names.append(frame.function.rpartition(".")[2])
            if frame.function == "cohort_pass":
                break
        return " > ".join(reversed(names)) or loop.name
