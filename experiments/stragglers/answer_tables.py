"""Tables of the README, from `results/grid_digits.csv`.

python experiments/stragglers/answer_tables.py [RESULTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.pages import markdown
from experiments.stragglers.answer_rows import MAIN_EVALUATION

SHOWN = [
    *(("exponential", cost) for cost in (0.0, 1.0, 10.0)),
    ("lognormal", 0.0),
    ("uniform", 0.0),
    ("uniform", 10.0),
    ("phones", 0.0),
    ("phones come and go", 0.0),
]


def format_number(value: float, digits: int = 3) -> str:
    """Format a time with so many digits, in whole units from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def times(frame: pd.DataFrame, classes: int) -> str:
    """Table of mean times to the target, a row for each answer; "1 of 3" if only some seeds reached it."""
    of_classes = frame[frame["classes"] == classes]
    seeds = of_classes.groupby(["answer", "clock", "cost"])["time"]
    known = set(zip(frame["clock"], frame["cost"], strict=True))
    columns = [at for at in SHOWN if at in known]
    rows = [["", *(f"{clock}, C = {cost:g}" for clock, cost in columns)]]
    for answer in of_classes["answer"].unique():
        row = [answer]
        for at in columns:
            cell = "-"
            if (answer, *at) in seeds.groups:
                found = seeds.get_group((answer, *at))
                reached = found[np.isfinite(found)]
                mean, std = reached.mean(), reached.std()
                cell = f"{format_number(mean)} ± {format_number(std, 2)}"
                if len(reached) < len(found):
                    cell = f"{len(reached)} of {len(found)}"
            row.append(cell)
        rows.append(row)
    return markdown(rows)


def work(frame: pd.DataFrame, classes: int, clock: str) -> str:
    """Table of accuracies, participation and wasted work, a row for each answer."""
    columns = {
        "accuracy %": "final",
        "slowest tenth %": "slowest_tenth",
        "worst tenth %": "worst_tenth",
        "Gini": "gini",
        "never %": "never",
        "wasted %": "wasted",
    }
    chosen = frame.query("classes == @classes and clock == @clock and cost == 0")
    means = chosen.groupby("answer", sort=False)[[*columns.values()]].mean()
    rows = [["", *columns]]
    for answer, row in means.iterrows():
        cells = [
            f"{100 * row[name]:.1f}" if title.endswith("%") else f"{row[name]:.2f}"
            for title, name in columns.items()
        ]
        rows.append([answer, *cells])
    return markdown(rows)


def winners(frame: pd.DataFrame) -> str:
    """Table of the number of settings and seeds in which each answer was first at its target."""
    setting = ["personalization", "classes", "clock", "cost", "seed"]
    complete = frame.groupby("personalization")["answer"].transform("nunique") > 10
    known = frame[complete & np.isfinite(frame["time"])]
    first = known.loc[known.groupby(setting)["time"].idxmin()]
    counts = first.groupby(["answer", "cost"]).size().unstack(fill_value=0)
    counts = counts.sort_values(counts.columns[0], ascending=False)
    head = ["first at the target", *(f"C = {cost:g}" for cost in counts)]
    return markdown([head, *([answer, *row] for answer, *row in counts.itertuples())])


def main() -> None:
    """Print all tables."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "experiments/stragglers/results")
    frame = pd.read_csv(folder / "grid_digits.csv")
    frame = frame[frame["judge"] == frame["personalization"].map(MAIN_EVALUATION)]
    print(winners(frame))
    for name, rows in frame.groupby("personalization", sort=False):
        for classes in sorted({*rows["classes"]}):
            judge = f"{classes} classes a client, judged by {MAIN_EVALUATION[name]}"
            print(f"\n{name}, {judge}\n\n{times(rows, classes)}")
        print(f"\n{work(rows, 2, 'exponential')}")


if __name__ == "__main__":
    main()
