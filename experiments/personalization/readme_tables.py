"""Tables of the README, from `results/table.csv`.

python experiments/personalization/readme_tables.py
"""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedjax_srp as srp
from experiments import pages
from experiments.personalization.rows import ROWS

HERE = Path(__file__).parent
CLEAR = 3  # points, three standard errors of an accuracy
FILE = HERE / "results/table.csv"
SIZE = (
    "not PFLlib's size: 100 of 2,250 training images a client in the mean, "
    "20 of 2,000 rounds, 10 times its step size"
)


class Result(NamedTuple):
    """Result of one row of the table in one training."""

    evaluation: str
    rounds: int
    best: str  # highest accuracy of all evaluations in %, as PFLlib reports it
    best_round: int
    last: str  # accuracy after the last round in %
    cpu_seconds: int  # of training, compilation and evaluation


COLUMNS = ("scale", "method", "seed", *Result._fields)
Rows = dict[str, list[dict[str, str]]]  # method -> a row of the file for each seed


def read(file: Path) -> list[dict[str, str]]:
    """Read the rows of a file; return none if there is no file."""
    if not file.is_file():
        return []
    with file.open(newline="") as handle:
        return list(csv.DictReader(handle))


def rows_of_scale(file: Path, scale: str) -> Rows:
    """Return the rows of one scale by method."""
    found: Rows = {}
    for row in read(file):
        if row["scale"] == scale:
            found.setdefault(row["method"], []).append(row)
    return found


def mean_std(values: Sequence[float]) -> str:
    """Format mean ± standard deviation (none for a single value); no values: the run diverged."""
    return pages.pm(values, 1) if values else "diverged"


def mean(rows: Rows, method: str, kind: str = "last") -> float:
    """Return the mean over the seeds of a method."""
    return float(np.mean([float(row[kind]) for row in rows[method]]))


def accuracies(rows: Rows) -> str:
    """Table of accuracies, highest after the last round first, and the number and cost of the trainings."""
    if not rows:
        return "Not run yet."
    lines = [
        "| method | judged by | best round | last round | the best was round | seeds |",
        "|" + "---|" * 6,
    ]
    for name in sorted(rows, key=lambda name: -mean(rows, name)):
        best, last = (
            [float(row[kind]) for row in rows[name]] for kind in ("best", "last")
        )
        if not max(best):  # right on no image: the parameters are nan
            best = last = []
        at = (
            "the last"
            if ROWS[name].after
            else ", ".join(row["best_round"] for row in rows[name])
        )
        evaluation = rows[name][0]["evaluation"]
        label = srp.methods.label(name)
        lines.append(
            f"| {label} | `{evaluation}` | {mean_std(best)} | {mean_std(last)} | {at} | {len(rows[name])} |"
        )
    seconds = {
        (ROWS[name].training, row["seed"]): int(row["cpu_seconds"])
        for name, seeds in rows.items()
        for row in seeds
    }
    missing = [srp.methods.label(name) for name in ROWS if name not in rows]
    summary = f"{len(seconds)} trainings, {sum(seconds.values()) / 60:.0f} minutes of processor time."
    summary += f" Not run yet: {', '.join(missing)}." if missing else ""
    return "\n".join([*lines, "", textwrap.fill(summary, 120)])


def lead(rows: Rows, method: str, other: str) -> list[float]:
    """Return how many points a method is ahead of another after the last round, seed by seed."""
    ours, theirs = (
        {row["seed"]: float(row["last"]) for row in rows[name]}
        for name in (method, other)
    )
    return [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]


def verdict(better: int, of: int) -> str:
    """Return the verdict on a sentence about several methods."""
    return "holds" if better == of else "fails" if not better else "in part"


def findings(rows: Rows) -> str:
    """Table of common statements about such comparisons, with verdict, numbers and size."""
    if not {"fedavg", "fedavg_ft", "local_only"} <= rows.keys():
        return "Not run yet."
    seeds = sorted({len(some) for some in rows.values()})
    size = f"{SIZE}, {' or '.join(map(str, seeds))} seed{'s' * (seeds[-1] > 1)}"
    own = [
        name
        for name in rows
        if ROWS[name].evaluation != "global" and name != "local_only"
    ]
    lines = ["| sentence | verdict | found | size |", "|---|---|---|---|"]
    for sentence, others, bar in (
        (
            "methods with a model for each client are ahead of FedAvg's one model",
            own,
            "fedavg",
        ),
        ("they are ahead of each client training alone", own, "local_only"),
        (
            "the newer ones are ahead of fine-tuning FedAvg's last layer",
            [
                name
                for name in own
                if name not in ("fedavg_ft", "fedprox_ft", "scaffold_ft")
            ],
            "fedavg_ft",
        ),
    ):
        leads = {name: lead(rows, name, bar) for name in others}
        ahead = [
            name
            for name in sorted(others, key=lambda name: -mean(rows, name))
            if min(leads[name]) > 0
        ]
        clear = sum(
            min(leads[name]) > 0 and np.mean(leads[name]) >= CLEAR for name in others
        )
        labels = ", ".join(srp.methods.label(name) for name in ahead)
        found = f"{len(ahead)} of {len(others)} above its {mean(rows, bar):.1f} % after the last round, with every seed"
        found += (
            f": {labels}" if 0 < len(ahead) < 6 else ""
        ) + f"; {clear} by {CLEAR} points or more"
        lines.append(
            f"| {sentence} | {verdict(len(ahead), len(others))} | {found} | {size} |"
        )
    judged = [name for name in rows if not ROWS[name].after]
    gain = [mean(rows, name, "best") - mean(rows, name) for name in judged]
    most = judged[int(np.argmax(gain))]
    found = f"{np.mean(gain):.1f} points in the mean over methods, most for {srp.methods.label(most)}: {max(gain):.1f}"
    sentence = (
        "the best of all rounds, chosen on the test data, is more than the last round"
    )
    lines.append(
        f"| {sentence} | {verdict(sum(g > 0 for g in gain), len(gain))} | {found} | {size} |"
    )
    return "\n".join(lines)


PAGES: Mapping[Path, pages.Parts] = {
    HERE / "README.md": {
        "cpu": lambda: accuracies(rows_of_scale(FILE, "cpu")),
        "findings": lambda: findings(rows_of_scale(FILE, "cpu")),
        "full": lambda: accuracies(rows_of_scale(FILE, "full")),
    },
}

if __name__ == "__main__":
    pages.write(PAGES)
