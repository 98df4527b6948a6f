"""Pictures and tables of figures 3 to 6, made of finished runs for `paper.py`.

A time to a target is only known to lie between two evaluations. So every table has, beside `time_C`, the last evaluated
time before the target was reached, `after_C`, and the lowest and highest factor consistent with both,
`least_speed_up_C` and `most_speed_up_C`; `finals` and `times` are final accuracies and times at C = 0 of the seeds, in
their order, separated by spaces. Methods with a personal part are evaluated twice: as in the paper's code
(`fine_tune`), and with the part that each client holds, which is the initial one before it first takes part. Every
method of a changed file that has such an evaluation is in the second table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import fedjax_srp as srp
from experiments.curves import save_picture
from fedjax_srp.lab.report import drawing, table
from fedjax_srp.results.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMUNICATIONS = (0, 10, 100)
FRACTIONS = (0.95, 0.99)  # targets, as fractions of FedRep's final accuracy
# rounds of all clients that the axes of the published figure 3 have room for, about
PUBLISHED_ROUNDS = {"CIFAR-10": 120, "CIFAR-100": 120}
OTHER_ROUNDS = 100
ZOOM = 0.95  # start of the axis of accuracies, as a fraction of the lowest final accuracy


def with_own_parts(curves: Mapping[str, Sequence[History]]) -> dict[str, list[History]]:
    """Return the runs of all methods that were evaluated with each client's own part, judged by that.

    Such an evaluation is called `own_head`, `own_representation` or the like; the first one counts.
    """
    found = {}
    for name, runs in curves.items():
        own = [each for each in runs[0].accuracies if each.startswith("own_")]
        if own:
            found[name] = [run.judged_by(own[0]) for run in runs]
    return found


def time_before(run: History, target: float, communication: float = 0.0) -> float:
    """Return the simulated time of the last evaluation before the target was reached.

    0 if the first evaluation reached it, inf if none did.
    """
    place = run.reached(target)
    return (
        math.inf
        if place is None
        else float(np.append(0.0, run.eval_elapsed(communication))[place])
    )


def with_intervals(
    frame: pd.DataFrame, curves: Mapping[str, Sequence[History]], target: float
) -> pd.DataFrame:
    """Add numbers of the seeds and intervals to the table of `table.comparison`; nan where a time is missing."""
    rows = frame.to_dict("records")
    for row in rows:
        runs = curves[row["method"]]
        row["finals"] = " ".join(f"{run.final_accuracy:.5f}" for run in runs)
        row["times"] = " ".join(f"{table.time_to(run, target):.6g}" for run in runs)
    for cost in COMMUNICATIONS:
        for row in rows:
            row[f"after_{cost}"] = float(
                np.mean([time_before(run, target, cost) for run in curves[row["method"]]])
            )
        known = {row["method"]: row for row in rows}
        for row in rows:
            twin, low, high = known.get(row["twin"]), math.nan, math.nan
            if (
                twin is not None
                and math.isfinite(row[f"time_{cost}"])
                and math.isfinite(twin[f"time_{cost}"])
            ):
                low = twin[f"after_{cost}"] / row[f"time_{cost}"]
                high = (
                    twin[f"time_{cost}"] / row[f"after_{cost}"]
                    if row[f"after_{cost}"]
                    else math.inf
                )
            row[f"least_speed_up_{cost}"], row[f"most_speed_up_{cost}"] = low, high
    return pd.DataFrame(rows)


def compare(curves: Mapping[str, Sequence[History]], target: float) -> pd.DataFrame:
    """Return `table.comparison` with intervals."""
    return with_intervals(
        table.comparison(curves, target, COMMUNICATIONS), curves, target
    )


def first_visible_time(
    curves: Mapping[str, list[History]], bottom: float, communication: float
) -> float:
    """Return the simulated time at which the first line or band rises above the bottom of a panel."""
    starts, curve = [math.inf], drawing.accuracy_curve(communication, None)
    for runs in curves.values():
        lines = [curve(run) for run in runs]
        bands = (
            [drawing.band([line]) for line in lines]
            if drawing.do_not_overlap(lines)
            else [drawing.band(lines)]
        )
        for times, _, _, top, _ in bands:
            if (above := np.flatnonzero(top >= bottom)).size:
                place = slice(max(0, above[0] - 1), above[0] + 1)
                starts.append(float(np.interp(bottom, top[place], times[place])))
    return min(starts)


def published_end(
    title: str, curves: Mapping[str, Sequence[History]], communication: float
) -> float | None:
    """Return about the time at which the published axis ends; None if no run of all clients gets there."""
    rounds = PUBLISHED_ROUNDS.get(title.removesuffix(" code"), OTHER_ROUNDS)
    for runs in curves.values():
        whole = [run for run in runs if (run.cohort_size == run.num_clients).all()]
        if whole and whole[0].num_rounds >= rounds:
            ends = [run.elapsed(communication)[rounds - 1] for run in whole]
            return float(np.mean(ends))
    return None


def raw_curves(curves: Mapping[str, Sequence[History]]) -> pd.DataFrame:
    """Return every accuracy that was measured, with its round and its time at C = 0.

    The time at a cost C is C more for each round, so that all factors follow from this table.
    """
    parts = []
    for method, runs in curves.items():
        for place, run in enumerate(runs):
            for evaluation in run.accuracies:
                part = {
                    "method": method,
                    "run": place,
                    "evaluation": evaluation,
                    "round": run.eval_round,
                    "time": run.eval_elapsed(),
                    "accuracy": run.mean_scores(evaluation),
                }
                parts.append(pd.DataFrame(part))
    frame = pd.concat(parts, ignore_index=True)
    frame["time"] = frame["time"].map("{:.6g}".format)
    frame["accuracy"] = frame["accuracy"].round(5)
    return frame


def draw(
    columns: Mapping[str, Mapping[str, list[History]]], number: int | None = None
) -> Figure:
    """Draw curves over time, zoomed to where they differ, with a line at each target.

    In figure 3 a dotted line marks about where the published axis ends.
    """
    figure = srp.plots.figure3(columns, COMMUNICATIONS, logarithmic=True)
    has_end = False
    for place, (title, curves) in enumerate(columns.items()):
        final = [
            float(np.mean([run.final_accuracy for run in runs]))
            for runs in curves.values()
        ]
        bottom = ZOOM * min(final)
        for ax, cost in zip(
            figure.axes[place :: len(columns)], COMMUNICATIONS, strict=True
        ):
            ax.set_ylim(bottom, min(1.0, max(final) + 0.02))
            ax.set_xlim(left=0.9 * first_visible_time(curves, bottom, cost))
            drawing.log_ticks(ax)
            end = published_end(title, curves, cost) if number == 3 else None
            if end is not None:
                has_end = True
                ax.axvline(end, color="#666666", linestyle=":", linewidth=1.2, zorder=1)
            for fraction in FRACTIONS:
                ax.axhline(
                    table.common_target(curves, fraction).accuracy,
                    color="#666666",
                    linewidth=0.7,
                    zorder=1,
                )
    (legend,) = figure.legends
    whose = {
        table.common_target(curves).reason.partition(" of ")[2]
        for curves in columns.values()
    }
    targets = " and ".join(f"{100 * fraction:g} %" for fraction in FRACTIONS)
    text = f"{legend.get_title().get_text()}\ngrey: {targets} of {'; of '.join(sorted(whose))}"
    if has_end:
        text += "; dotted: about the end of the published axis"
    legend.set_title(text)
    return figure


def file_name(title: str) -> str:
    """Return the name of a data set's files."""
    return title.lower().replace("-", "").replace(" ", "_")


def report(
    columns: Mapping[str, dict[str, list[History]]], figure: int, heading: str, out: Path
) -> str:
    """Write figure and tables of data sets by title; return the tables as text.

    Files of one data set have its name, so that another one does not overwrite them.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = f"figure{figure}" + (f"_{file_name(*columns)}" if len(columns) == 1 else "")
    save_picture(draw(columns, figure), out / f"{stem}.png", dpi=110)
    parts = []
    for title, curves in columns.items():
        frames = []
        for fraction in FRACTIONS:
            target = table.common_target(curves, fraction)
            parts.append(f"{title}: {heading}; {target.reason}")
            frames.append(compare(curves, target.accuracy))
            parts.append(table.render(frames[-1], target))
            if own := with_own_parts(curves):
                parts.append(
                    f"{title}: the same runs, judged with each client's own part; {target.reason}"
                )
                frames.append(compare(own, target.accuracy))
                parts.append(table.render(frames[-1], target))
        name = f"figure{figure}_{file_name(title)}"
        pd.concat(frames).to_csv(out / f"{name}.csv", index=False)
        raw_curves(curves).to_csv(out / f"{name}_curves.csv", index=False)
    text = "\n\n".join(parts)
    (out / f"{stem}.txt").write_text(text + "\n", "utf-8")
    return text
