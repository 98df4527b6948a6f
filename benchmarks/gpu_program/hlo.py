"""Reads the text of an optimised program (HLO): computations, instructions, shapes, source lines of loops."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

BITS = re.compile(r"[a-z]+(\d+)")
ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
HEAD = re.compile(r"^(ENTRY )?%(\S+) \(.*\{\s*$")
LINE = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")


class Shape(NamedTuple):
    """One array."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def num_bytes(self) -> int:
        """Size in memory, rounded up to bytes."""
        return -(-self.size * bits(self.dtype) // 8)


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shapes: tuple[Shape, ...]  # of its result; several where that is a tuple
    op: str
    operands: tuple[str, ...]
    attributes: str  # the text after the operands
    number: int = -1  # of a parameter

    @property
    def num_bytes(self) -> int:
        """Size of its result."""
        return sum(shape.num_bytes for shape in self.shapes)

    def called(self, attribute: str = "calls") -> str | None:
        """The computation that an attribute names."""
        found = re.search(rf"\b{attribute}=%([\w.\-]+)", self.attributes)
        return found and found[1]

    @property
    def target(self) -> str:
        """Target of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def known_trips(self) -> int | None:
        """Number of trips of a while loop, if the compiler knows it."""
        found = re.search(r'known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else None


class Frame(NamedTuple):
    """A line of the source, in a stack whose innermost frame comes first."""

    file: str
    function: str
    line: int


class Module(NamedTuple):
    """A program."""

    computations: dict[str, dict[str, Instruction]]  # instructions by name, in the order in which they run
    roots: dict[str, str]  # computation -> its result
    entry: str
    stacks: dict[int, tuple[Frame, ...]]

    def parameters(self, computation: str) -> list[str]:
        """Names of the parameters of a computation, in their order."""
        found = [i for i in self.computations[computation].values() if i.op == "parameter"]
        return [i.name for i in sorted(found, key=lambda i: i.number)]

    def operands(self, computation: str, instruction: Instruction) -> list[Instruction]:
        """Instructions whose results an instruction reads."""
        return [self.computations[computation][name] for name in instruction.operands]

    def stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        """Source of an instruction; () if unknown."""
        found = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        return self.stacks.get(int(found[1]), ()) if found else ()


def bits(dtype: str) -> int:
    """Bits of an element; tokens and opaque values have none."""
    if dtype == "pred":
        return 8
    found = BITS.match(dtype)
    return int(found[1]) if found else 0


def shapes(text: str) -> tuple[Shape, ...]:
    """The arrays that the text of a type names."""
    found = ARRAY.findall(text)
    return tuple(Shape(dtype, tuple(int(n) for n in dims.split(",") if n)) for dtype, dims in found)


def closing(text: str, start: int = 0) -> int:
    """Position of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"a bracket of {text[start : start + 60]!r} never closes; give the whole text of a program")


def instruction(name: str, text: str) -> Instruction | None:
    """Parse the text after `%name = `; None if it is no instruction."""
    text = re.sub(r"/\*.*?\*/", "", text)
    end = closing(text) + 1 if text.startswith("(") else text.index(" ")
    kind, rest = text[:end], text[end:].strip()
    found = re.match(r"([\w\-]+)\(", rest)
    if not found:
        return None
    last = closing(rest, found.end() - 1)
    inside = rest[found.end() : last]
    number = int(inside) if found[1] == "parameter" else -1
    operands = re.findall(r"%([\w.\-]+)", inside)
    return Instruction(name, shapes(kind), found[1], tuple(operands), rest[last + 1 :], number)


def parse(text: str) -> Module:
    """Reads `compiled.as_text()`.

    Raises:
        ValueError: a text without an entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    roots: dict[str, str] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if head := HEAD.match(line):
            current = head[2]
            computations[current] = {}
            entry = current if head[1] else entry
        elif line.startswith("}"):
            current = ""
        elif current and (match := LINE.match(line)) and (made := instruction(match[2], match[3])):
            computations[current][made.name] = made
            if match[1]:
                roots[current] = made.name
    if not entry:
        raise ValueError("the text has no ENTRY computation; give that of a compiled program, compiled.as_text()")
    return Module(computations, roots, entry, _stacks(text))


def _stacks(text: str) -> dict[int, tuple[Frame, ...]]:
    """Source stacks, from the tables in front of a program."""
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] = {}
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif row := re.match(r"^(\d+) (.*)$", line):
            table[int(row[1])] = row[2]
        elif line.startswith("%"):
            break

    def number(text: str, field: str) -> int:
        found = re.search(rf"{field}=(\d+)", text)
        if not found:
            raise ValueError(f"a row of the stacks, {text!r}, has no {field}; use JAX 0.10 or 0.11")
        return int(found[1])

    frames: dict[int, Frame] = {}
    parents: dict[int, int] = {}
    for key, row in tables.get("StackFrames", {}).items():
        place = tables["FileLocations"][number(row, "file_location_id")]
        file = tables["FileNames"][number(place, "file_name_id")].strip('"')
        function = tables["FunctionNames"][number(place, "function_name_id")].strip('"')
        frames[key] = Frame(file, function, number(place, r"\bline"))
        parents[key] = number(row, "parent_frame_id")
    shift = parents.get(1, 0)  # some versions print 1 for "none", and every parent one too high
    stacks: dict[int, tuple[Frame, ...]] = {}
    for key in sorted(frames):
        stacks[key] = (frames[key], *stacks.get(parents[key] - shift, ()))
    return stacks
