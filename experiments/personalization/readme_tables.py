"""The tables of the README, from `results/table.csv`: `table.py --summarize` writes them, a test compares."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedjax_srp as srp


class Result(NamedTuple):
    """What one row of the table came to, in one training."""

    evaluation: str
    rounds: int
    best: str  # accuracy in %, the highest of all evaluations: PFLlib's choice
    best_round: int
    last: str  # after the last round
    cpu_seconds: int  # of the training, compiling and judging included


COLUMNS = ("scale", "method", "seed", *Result._fields)


def read(file: Path) -> list[dict[str, str]]:
    """The rows of a file; none where there is no file."""
    if not file.is_file():
        return []
    with file.open(newline="") as handle:
        return list(csv.DictReader(handle))


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation; a single value has none."""
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def by_method(rows: Sequence[dict[str, str]], scale: str) -> dict[str, list[dict[str, str]]]:
    """Rows of one scale."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if row["scale"] == scale:
            found.setdefault(row["method"], []).append(row)
    return found


def accuracies(rows: Sequence[dict[str, str]], scale: str = "cpu") -> str:
    """A line a method, the most accurate after the last round first."""
    lines = ["| method | judged by | best round | last round | the best was round | seeds |", "|" + "---|" * 6]
    found = by_method(rows, scale)
    for name in sorted(found, key=lambda name: -np.mean([float(row["last"]) for row in found[name]])):
        best, last = ([float(row[kind]) for row in found[name]] for kind in ("best", "last"))
        rounds = ", ".join(row["best_round"] for row in found[name])
        label, evaluation = srp.methods.label(name), found[name][0]["evaluation"]
        lines.append(f"| {label} | `{evaluation}` | {spread(best)} | {spread(last)} | {rounds} | {len(last)} |")
    return "\n".join(lines)
