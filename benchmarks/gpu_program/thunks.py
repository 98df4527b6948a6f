"""Reads the dump of a compiled program's thunks as a tree of kernels, loops and graphs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

ROW = re.compile(r"^( *)\d+: k(\w+)")
SECTION = re.compile(r"^( *)(condition|body|branch_\d+|true_branch|false_branch):\s*$")
CONTROL = ("AsyncStart", "AsyncDone", "CommandBuffer", "Conditional", "Sequential", "While")  # they launch nothing


@dataclasses.dataclass
class Thunk:
    """One step of a program.

    Attributes:
        kind: "CustomKernel", "Copy", "While", "CommandBuffer" (a CUDA graph) and so on.
        parts: its steps by section: "" for a graph, "condition" and "body" for a loop.
        in_graph: whether a graph holds it, so that the host does not launch it.
    """

    kind: str
    parts: dict[str, list[Thunk]] = dataclasses.field(default_factory=dict)
    in_graph: bool = False


def parse(text: str) -> list[Thunk]:
    """Reads a dump `*.thunk_sequence_after_thunk_passes.txt`.

    Raises:
        ValueError: a text without thunks.
    """
    top: list[Thunk] = []
    open_thunks: list[tuple[int, Thunk]] = []  # with their indents, outermost first
    for line in text.splitlines():
        if section := SECTION.match(line):
            # The heading of a condition has lost its indent; it belongs to the loop just above it.
            if section[2] != "condition":
                while open_thunks and open_thunks[-1][0] >= len(section[1]):
                    open_thunks.pop()
            open_thunks[-1][1].parts[section[2]] = []
        elif row := ROW.match(line):
            while open_thunks and open_thunks[-1][0] >= len(row[1]):
                open_thunks.pop()
            thunk = Thunk(row[2])
            siblings = top
            if open_thunks:
                above = open_thunks[-1][1]
                thunk.in_graph = above.in_graph or above.kind == "CommandBuffer"
                siblings = above.parts.setdefault("", []) if not above.parts else list(above.parts.values())[-1]
            siblings.append(thunk)
            open_thunks.append((len(row[1]), thunk))
    if not top:
        raise ValueError("the text has no thunks; give the dump that ends in thunk_sequence_after_thunk_passes.txt")
    return top


def flat(thunks: list[Thunk]) -> Iterator[Thunk]:
    """Steps in their order, without the graphs and streams that hold them."""
    for thunk in thunks:
        if thunk.kind in ("CommandBuffer", "AsyncStart", "Sequential"):
            yield from flat(thunk.parts.get("", []))
        else:
            yield thunk


def loops(thunks: list[Thunk]) -> list[Thunk]:
    """The loops and conditionals of a sequence, not those inside of them."""
    return [thunk for thunk in flat(thunks) if thunk.kind in ("While", "Conditional")]


def kernels(thunks: list[Thunk]) -> int:
    """Number of kernels and copies that a sequence launches, without those of its loops."""
    return sum(thunk.kind not in CONTROL for thunk in flat(thunks))
