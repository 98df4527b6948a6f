"""Figures of accuracy over time from `results/curves_<data set>.csv`: mean, and slowest tenth of the clients.

python experiments/stragglers/answer_figure.py [RESULTS]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

from experiments import curves
from experiments.stragglers.answer_rows import ANSWERS, SHOWN

COLORS = dict(
    zip(
        ANSWERS,
        (
            curves.GREY,
            curves.BLUE,
            curves.ORANGE,
            curves.GREEN,
            curves.PINK,
            curves.YELLOW,
            curves.SKY,
        ),
        strict=True,
    )
)
MEASURES = {"mean": "mean accuracy", "slowest_tenth": "accuracy, slowest tenth"}


def values_on_grid(runs: pd.DataFrame, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and the (seeds, times) values last evaluated; nan before the first and after a run's end."""
    times = np.geomspace(runs["time"].min(), runs["time"].max(), curves.MAX_POINTS)
    rows = []
    for _, run in runs.groupby("seed"):
        at, values = run["time"].to_numpy(), run[measure].to_numpy()
        last = np.searchsorted(at, times * (1 + 1e-9), side="right") - 1
        rows.append(
            np.where((last >= 0) & (times <= at[-1] * (1 + 1e-9)), values[last], np.nan)
        )
    return times, np.stack(rows)


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Draw a column for each setting, the mean above the slowest tenth."""
    available = set(zip(frame["personalization"], frame["clock"], strict=True))
    settings = {
        setting: title for setting, title in SHOWN.items() if setting in available
    }
    figure, axes = curves.panels(
        len(settings), width=3.4, height=5.6, rows=2, sharey="row", sharex="col"
    )
    for column, ((name, clock), title) in enumerate(settings.items()):
        rows = frame[(frame["personalization"] == name) & (frame["clock"] == clock)]
        lines = itertools.product(COLORS.items(), enumerate(MEASURES.items()))
        for (answer, color), (row, (measure, label)) in lines:
            ax, runs = axes[row][column], rows[rows["answer"] == answer]
            if len(runs):
                times, values = values_on_grid(runs, measure)
                whole = ~np.isnan(values).any(axis=0)
                x, y = times[whole], values[:, whole]
                width = 2.2 if answer == "doubling" else 1.4
                curves.draw_trials(
                    ax, x, y, color, alpha=0.12, linewidth=width, label=answer
                )
            ax.set_xscale("log")
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_ylabel(label if not column else "")
        axes[0][column].set_title(title, fontsize=10)
        axes[1][column].set_xlabel(
            "seconds" if clock.startswith("phones") else "time, mean times of a client"
        )
    columns = min(frame["answer"].nunique(), 2 * len(settings))
    curves.legend(figure, axes, columns, title=None)
    curves.save_picture(figure, path, dpi=110)


def main() -> None:
    """Draw a figure for each data set."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "experiments/stragglers/results")
    for path in sorted(folder.glob("curves_*.csv")):
        draw(pd.read_csv(path), folder / path.name.replace(".csv", ".png"))


if __name__ == "__main__":
    main()
