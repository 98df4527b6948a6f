"""Methods compared in one figure: accuracy over simulated time, a panel for each cost."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_srp.lab.report import drawing, group_times, table
from fedjax_srp.lab.report.page.data import Comparison
from fedjax_srp.parts.checks import printable
from fedjax_srp.results import csv_files
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# in inches: least height of the figure, and height without its legend
HEIGHT = 4.5
PANEL = 3.9
FILES = (
    *("table{}.txt", "table{}.csv", "table{}.tex", "groups{}.csv"),
    *("accuracy{}.png", "accuracy{}.pdf"),
)
HIDDEN = 0.8  # largest share of every run that a cut may hide


def figure(
    histories: table.Repeats,
    target: table.Target,
    communications: Sequence[float],
    title: str = "",
) -> Figure:
    """Draw accuracy over simulated time, a panel for each cost, and the target as a dotted line.

    A cost that cannot be added to any of the runs has no panel; if none can, there is a panel
    without cost.

    A panel ends soon after the last run reached the target, or with the longest run if some run
    never did. If that would hide more than 80 % of every run in some panel, all panels show whole
    runs.
    """
    import matplotlib as mpl

    can_add = any(runs[0].takes_communication for runs in histories.values())
    communications = [cost for cost in communications if can_add or not cost] or [0]
    names = drawing.evaluation_names(histories, None)
    has_target = math.isfinite(target.accuracy)
    is_uneven = len({len(runs) for runs in histories.values()}) > 1
    styles = drawing.styles(histories)
    labels = drawing.labels(histories, None, names, count=is_uneven)
    groups_by_cost = [_drawable(histories, cost) for cost in communications]
    cuts = _cuts(groups_by_cost, target.accuracy, communications)
    with mpl.rc_context(drawing.RC):
        drawn = new_figure((max(4.4, 3.6 * len(communications)), HEIGHT))
        panels = drawn.subplots(1, len(communications), sharey=True, squeeze=False)[0]
        handles: dict[str, Any] = {}
        notes = dict.fromkeys([drawing.plain(title)] if title else [])
        for ax, cost, groups, cut in zip(
            panels, communications, groups_by_cost, cuts, strict=True
        ):
            curve = drawing.accuracy_curve(cost, None)
            new_handles, new_notes = drawing.draw(ax, groups, curve, styles, labels)
            handles |= new_handles
            notes |= dict.fromkeys(new_notes)
            if has_target:
                ax.axhline(target.accuracy, color="#555555", linewidth=1.0, linestyle=":")
            ax.set_title(f"communication cost {table.exact(cost)}")
            ax.set_xlabel(drawing.TIME_LABEL)
            if cut is not None:
                ax.set_xlim(0, cut)
        panels[0].set_ylabel(drawing.score_label(histories, names))
        final = [run.final_accuracy for runs in histories.values() for run in runs]
        # the panel begins where curves begin, but not far below their ends
        lowest = min(filter(math.isfinite, final), default=1.0)
        far = min(0.6, lowest - 0.1)
        begin = _first_score(histories)
        if has_target:
            far = min(target.accuracy - 0.4, lowest - 0.1)
            begin = min(target.accuracy, begin)
            notes[f"dotted: target of {table.shown(target)}"] = None
        begin -= max(0.01, 0.05 * (1 - begin))
        panels[0].set_ylim(max(0.0, far, begin), 1.0)
        drawing.legend_below(drawn, handles, labels, notes, PANEL)
    return drawn


def _first_score(histories: table.Repeats) -> float:
    """Return the lowest mean accuracy of all runs; 1 if none is finite."""
    scores = [run.mean_accuracy for runs in histories.values() for run in runs]
    scores = np.concatenate([*scores, [1.0]])
    return float(scores[np.isfinite(scores)].min())


def _drawable(histories: table.Repeats, cost: float) -> table.Repeats:
    """Return the runs to which a cost can be added."""
    if not cost:
        return histories
    return {name: runs for name, runs in histories.items() if runs[0].takes_communication}


def files(
    compared: Comparison, folder: Path, suffix: str = ""
) -> tuple[str, dict[Path, Callable[[Path], object]]]:
    """Return a comparison's table as text, and writers of its `FILES` by path, for `atomic.replace`.

    If drawing fails, there are no figures.
    """
    histories = compared.rows.histories
    target = compared.target
    costs = compared.communications
    frame = table.comparison(histories, target.accuracy, costs, compared.rows.twins)
    times = group_times.frame(histories, target.accuracy, costs)
    of_groups = group_times.render(times, target)
    text = "\n".join([table.render(frame, target), *compared.rows.notes, "", of_groups])
    text = printable(text, kept="\n")
    latex = table.latex(frame, target, compared.rows.notes)
    text_file, csv_file, latex_file, groups_file, *images = [
        folder / name.format(suffix) for name in FILES
    ]
    writers: dict[Path, Callable[[Path], object]] = {
        text_file: lambda path: path.write_text(text + "\n", "utf-8"),
        csv_file: csv_files.as_csv(frame),
        latex_file: lambda path: path.write_text(latex, "utf-8"),
        groups_file: csv_files.as_csv(times),
    }

    @functools.cache
    def draw() -> Figure:
        return figure(histories, target, costs, compared.title)

    for file in images:
        content = run_folder.image(draw, file.name)
        if content is None:
            break
        writers[file] = operator.methodcaller("write_bytes", content)
    return text, writers


def _cuts(
    groups_by_cost: Sequence[table.Repeats], target: float, costs: Sequence[float]
) -> list[float | None]:
    """Return the end of each panel, soon after the target; None for panels of whole runs."""
    cuts: list[float | None] = []
    for groups, cost in zip(groups_by_cost, costs, strict=True):
        runs = [run for repeats in groups.values() for run in repeats]
        lengths = [float(run.elapsed(cost)[-1]) for run in runs]
        end = 1.25 * max(
            (table.time_to(run, target, cost) for run in runs), default=math.inf
        )
        if 0 < end < (1 - HIDDEN) * min(lengths, default=0.0):
            return [None] * len(groups_by_cost)
        is_within = 0 < end < max(lengths, default=0.0)
        cuts.append(end if is_within else None)
    return cuts
