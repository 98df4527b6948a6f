"""Methods compared in one figure: accuracy over simulated time, a panel a communication cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedjax_srp import methods
from fedjax_srp.report import drawing, plots, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(histories: table.Repeats, target: table.Target, communications: Sequence[float], title: str = "") -> Figure:
    """Accuracy over simulated time, a panel a communication cost, the target dotted.

    A panel ends a little after the last run has reached the target, or with the longest run where one never does.
    """
    import matplotlib as mpl
    import matplotlib.figure

    with mpl.rc_context(drawing.RC):
        drawn = matplotlib.figure.Figure(figsize=(3.6 * len(communications), 4.5), layout="constrained")
        panels = drawn.subplots(1, len(communications), sharey=True, squeeze=False)[0]
        for ax, cost in zip(panels, communications, strict=True):
            shown = {name: runs for name, runs in histories.items() if not (cost and runs[0].asynchronous)}
            if not shown:  # nothing but runs whose rounds overlap
                ax.set_axis_off()
                continue
            plots.accuracy_over_time(shown, cost, ax=ax)
            ax.get_legend().remove()
            ax.axhline(target.accuracy, color="#555555", linewidth=1.0, linestyle=":")
            ax.set_title(f"communication cost {cost:g}")
            ax.set_ylabel("")
            times = [run.time_to(target.accuracy, cost) for runs in shown.values() for run in runs]
            if all(map(math.isfinite, times)):
                ax.set_xlim(0, 1.25 * max(times))
            ax.set_xlabel("simulated time (time units)")
        panels[0].set_ylabel("mean test accuracy")
        ends = [run.final_accuracy for runs in histories.values() for run in runs]
        lowest = min(filter(math.isfinite, ends), default=1.0)  # no curve stays below the panel
        panels[0].set_ylim(max(0.0, min(target.accuracy - 0.4, lowest - 0.1)), 1.0)
        counts = "/".join(map(str, sorted({len(runs) for runs in histories.values()})))
        notes = [title] if title else []
        notes += [f"lines: mean of {counts} seeds, bands: lowest to highest"] if counts != "1" else []
        notes.append(f"dotted: target of {100 * target.accuracy:.1f} %")
        best = max(panels, key=lambda ax: len(ax.get_legend_handles_labels()[0]))
        at_no_cost = [name for name, runs in histories.items() if 0 in communications or not runs[0].asynchronous]
        drawn.legend(
            best.get_legend_handles_labels()[0],
            [f"{methods.label(name)} ({histories[name][0].evaluation})" for name in at_no_cost],
            loc="outside lower center",
            ncols=min(4, -(-len(histories) // 2)),
            title="; ".join(notes),
            frameon=False,
        )
    return drawn
