"""Tables of the README, from `results/grid_digits.csv`.

python experiments/stragglers/answer_tables.py [RESULTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.stragglers.answer_rows import MAIN_EVALUATION

SHOWN = [
    ("exponential", 0.0),
    ("exponential", 1.0),
    ("exponential", 10.0),
    ("lognormal", 0.0),
    ("uniform", 0.0),
]
SHOWN += [("uniform", 10.0), ("phones", 0.0), ("phones come and go", 0.0)]


def format_number(value: float, digits: int = 3) -> str:
    """Format a time with so many digits, in whole units from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def times(frame: pd.DataFrame, classes: int) -> str:
    """Table of mean times to the target, a row for each answer; "1 of 3" if only some seeds reached it."""
    columns = [
        at for at in SHOWN if ((frame["clock"] == at[0]) & (frame["cost"] == at[1])).any()
    ]
    lines = [
        "| | " + " | ".join(f"{clock}, C = {cost:g}" for clock, cost in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    of_classes = frame[frame["classes"] == classes]
    for answer in dict.fromkeys(of_classes["answer"]):
        row = [answer]
        for clock, cost in columns:
            found = of_classes[
                (of_classes[["answer", "clock", "cost"]] == [answer, clock, cost]).all(
                    axis=1
                )
            ]["time"]
            reached = found[np.isfinite(found)]
            if len(reached) < len(found):
                row.append(f"{len(reached)} of {len(found)}")
            else:
                mean, std = reached.mean(), reached.std()
                row.append(
                    f"{format_number(mean)} ± {format_number(std, 2)}"
                    if len(found)
                    else "-"
                )
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def work(frame: pd.DataFrame, classes: int, clock: str) -> str:
    """Table of accuracies, participation and wasted work, a row for each answer."""
    columns = {
        "final": 100,
        "slowest_tenth": 100,
        "worst_tenth": 100,
        "gini": 1,
        "never": 100,
        "wasted": 100,
    }
    lines = [
        "| | accuracy % | slowest tenth % | worst tenth % | Gini | never % | wasted % |",
        "|---|---|---|---|---|---|---|",
    ]
    chosen = frame[
        (frame["classes"] == classes) & (frame["clock"] == clock) & (frame["cost"] == 0)
    ]
    for answer in dict.fromkeys(chosen["answer"]):
        means = chosen[chosen["answer"] == answer][list(columns)].mean()
        cells = [
            f"{means[c] * by:.2f}" if c == "gini" else f"{means[c] * by:.1f}"
            for c, by in columns.items()
        ]
        lines.append("| " + " | ".join([answer, *cells]) + " |")
    return "\n".join(lines)


def winners(frame: pd.DataFrame) -> str:
    """Table of the number of settings and seeds in which each answer was first at its target."""
    setting = ["personalization", "classes", "clock", "cost", "seed"]
    complete = frame.groupby("personalization")["answer"].transform("nunique") > 10
    known = frame[complete & np.isfinite(frame["time"])]
    first = known.loc[known.groupby(setting)["time"].idxmin()]
    table = (
        first.pivot_table(index="answer", columns="cost", values="time", aggfunc="count")
        .fillna(0)
        .astype(int)
    )
    table = table.sort_values(table.columns[0], ascending=False)
    lines = [
        "| first at the target | "
        + " | ".join(f"C = {c:g}" for c in table.columns)
        + " |"
    ]
    lines += ["|---" * (len(table.columns) + 1) + "|"]
    rows = zip(table.index, table.to_numpy(), strict=True)
    lines += ["| " + " | ".join([answer, *map(str, row)]) + " |" for answer, row in rows]
    return "\n".join(lines)


def main() -> None:
    """Print all tables."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "experiments/stragglers/results")
    frame = pd.read_csv(folder / "grid_digits.csv")
    frame = frame[frame["judge"] == frame["personalization"].map(MAIN_EVALUATION)]
    print(winners(frame))
    for name, rows in frame.groupby("personalization", sort=False):
        for classes in sorted({*rows["classes"]}):
            print(
                f"\n{name}, {classes} classes a client, judged by {MAIN_EVALUATION[name]}\n\n{times(rows, classes)}"
            )
        print(f"\n{work(rows, 2, 'exponential')}")


if __name__ == "__main__":
    main()
