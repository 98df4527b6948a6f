"""Methods compared in one figure: accuracy over simulated time, a panel a communication cost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedjax_srp import methods
from fedjax_srp.report import drawing, plots, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 4.5  # in inches, with two rows in the legend
LETTER = 0.067  # mean width of a letter in the legend, in inches


def figure(histories: table.Repeats, target: table.Target, communications: Sequence[float], title: str = "") -> Figure:
    """Accuracy over simulated time, a panel a communication cost, the target dotted.

    A panel ends a little after the last run has reached the target, or with the longest run where one never does.
    """
    import matplotlib as mpl
    import matplotlib.figure

    with mpl.rc_context(drawing.RC):
        width = max(4.4, 3.6 * len(communications))
        drawn = matplotlib.figure.Figure(figsize=(width, HEIGHT), layout="constrained")
        panels = drawn.subplots(1, len(communications), sharey=True, squeeze=False)[0]
        apart = False
        for ax, cost in zip(panels, communications, strict=True):
            shown = {name: runs for name, runs in histories.items() if not (cost and runs[0].asynchronous)}
            if not shown:  # nothing but runs whose rounds overlap
                ax.set_axis_off()
                continue
            plots.accuracy_over_time(shown, cost, ax=ax)
            ax.get_legend().remove()
            if math.isfinite(target.accuracy):
                ax.axhline(target.accuracy, color="#555555", linewidth=1.0, linestyle=":")
            ax.set_title(f"communication cost {cost:g}")
            ax.set_ylabel("")
            times = [table.time_to(run, target.accuracy, cost) for runs in shown.values() for run in runs]
            if all(map(math.isfinite, times)) and max(times) > 0:
                ax.set_xlim(0, 1.25 * max(times))
            curve = drawing.accuracy_curve(cost, None)
            apart |= any(drawing.are_apart([curve(run) for run in runs]) for runs in shown.values())
            ax.set_xlabel("simulated time (time units)")
        panels[0].set_ylabel("mean test accuracy")
        ends = [run.final_accuracy for runs in histories.values() for run in runs]
        lowest = min(filter(math.isfinite, ends), default=1.0)  # no curve stays below the panel
        aim = target.accuracy if math.isfinite(target.accuracy) else 1.0
        panels[0].set_ylim(max(0.0, min(aim - 0.4, lowest - 0.1)), 1.0)
        counts = "/".join(map(str, sorted({len(runs) for runs in histories.values()})))
        notes = [title] if title else []
        notes += [f"lines: mean of {counts} seeds, bands: lowest to highest"] if counts != "1" else []
        notes += [drawing.APART] if apart else []
        notes += [f"dotted: target of {table.shown(target)}"] if math.isfinite(target.accuracy) else []
        best = max(panels, key=lambda ax: len(ax.get_legend_handles_labels()[0]))
        at_no_cost = [name for name, runs in histories.items() if 0 in communications or not runs[0].asynchronous]
        labels = [f"{methods.label(name)} ({histories[name][0].evaluation})" for name in at_no_cost]
        columns = max(1, min(4, -(-len(labels) // 2), int(width / (0.75 + LETTER * max(map(len, labels))))))
        text = textwrap.fill("; ".join(notes), int(width / LETTER))
        rows = -(-len(labels) // columns) + text.count("\n")
        drawn.set_figheight(HEIGHT + 0.2 * max(0, rows - 2))
        legend = drawn.legend(
            best.get_legend_handles_labels()[0],
            labels,
            loc="outside lower center",
            ncols=columns,
            title=text,
            frameon=False,
        )
        legend.get_title().set_multialignment("center")
    return drawn
