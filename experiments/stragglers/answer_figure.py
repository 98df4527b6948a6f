"""Figures of accuracy over time from `results/curves_<data set>.csv`: mean, and slowest tenth of the clients.

python experiments/stragglers/answer_figure.py [RESULTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from experiments import curves
from experiments.stragglers.answer_rows import ANSWERS, SHOWN

OF_ANSWERS = (
    curves.GREY,
    curves.BLUE,
    curves.ORANGE,
    curves.GREEN,
    curves.PINK,
    curves.YELLOW,
    curves.SKY,
)
COLORS = dict(zip(ANSWERS, OF_ANSWERS, strict=True))
MEASURES = {"mean": "mean accuracy", "slowest_tenth": "accuracy, slowest tenth"}


def values_on_grid(runs: pd.DataFrame, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and the (seeds, times) values last evaluated; nan before the first and after a run's end."""
    times = np.geomspace(runs["time"].min(), runs["time"].max(), curves.MAX_POINTS)
    rows = []
    for _, run in runs.groupby("seed"):
        at, values = run["time"].to_numpy(), run[measure].to_numpy()
        last = np.searchsorted(at, times * (1 + 1e-9), side="right") - 1
        is_known = (last >= 0) & (times <= at[-1] * (1 + 1e-9))
        rows.append(np.where(is_known, values[last], np.nan))
    return times, np.stack(rows)


def draw(frame: pd.DataFrame) -> Figure:
    """Draw a column for each setting, the mean above the slowest tenth."""
    groups = dict(list(frame.groupby(["personalization", "clock"])))
    settings = [setting for setting in SHOWN if setting in groups]
    figure, axes = curves.panels(
        len(settings), width=3.4, height=5.6, rows=2, sharey="row", sharex="col"
    )
    for of_column, setting in zip(axes.T, settings, strict=True):
        answers = dict(list(groups[setting].groupby("answer")))
        for ax, (measure, label) in zip(of_column, MEASURES.items(), strict=True):
            for answer in [answer for answer in COLORS if answer in answers]:
                times, values = values_on_grid(answers[answer], measure)
                whole = ~np.isnan(values).any(axis=0)
                width = 2.2 if answer == "doubling" else 1.4
                style = {"alpha": 0.12, "linewidth": width, "label": answer}
                shown = (times[whole], values[:, whole], COLORS[answer])
                curves.draw_trials(ax, *shown, **style)
            ax.set_xscale("log")
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_ylabel(label if setting == settings[0] else "")
        of_column[0].set_title(SHOWN[setting], fontsize=10)
        is_phone = setting[1].startswith("phones")
        of_column[1].set_xlabel("seconds" if is_phone else "time, mean times of a client")
    columns = min(frame["answer"].nunique(), 2 * len(settings))
    curves.legend(figure, axes, columns, title=None)
    return figure


def main() -> None:
    """Draw a figure for each data set."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "experiments/stragglers/results")
    for path in sorted(folder.glob("curves_*.csv")):
        figure = draw(pd.read_csv(path))
        curves.save_picture(figure, path.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
