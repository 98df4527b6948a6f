"""A plain figure of one run, without pyplot; Matplotlib is imported when it is drawn."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedjax_srp.parts.checks import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X = Literal["time", "rounds"]
X_LABELS: dict[X, str] = {"time": "simulated time (time units)", "rounds": "round"}
LOOK: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "grid.color": "#DDDDDD",
    "lines.linewidth": 1.8,
}


def new_figure(size: tuple[float, float]) -> Figure:
    """Return a figure without pyplot's global state, which notebooks can display."""
    import matplotlib.figure

    class NotebookFigure(matplotlib.figure.Figure):
        def _repr_png_(self) -> bytes:
            image = io.BytesIO()
            self.savefig(image, dpi=self.dpi, format="png")
            return image.getvalue()

    return NotebookFigure(figsize=size, dpi=110, layout="constrained")


def plain(text: str) -> str:
    """Escape dollars, which would begin mathematics in Matplotlib, and replace control characters."""
    return printable(text, kept="\n").replace("$", r"\$")


def draw(
    history: Any, communication: float, evaluation: str | None, ax: Axes | None, x: X
) -> Figure:
    """Draw the mean accuracy of a run, or its first metric if it was not evaluated.

    Hollow circles mark the beginning of each stage of participation.
    """
    import matplotlib as mpl

    ends = history.round if x == "rounds" else history.elapsed(communication)
    is_evaluated = len(history.eval_round) > 0
    if is_evaluated or evaluation is not None or not history.metrics:
        values = history.mean_scores(evaluation)
        places = ends[history.eval_round - 1]
        judged_by = evaluation or str(history.evaluation)
        label = plain(f"mean {history.judged_on} {history.score_name} ({judged_by})")
    else:
        metric = next(iter(history.metrics))
        values = history.metrics[metric]
        places = ends
        label = plain(metric.replace("_", " "))
    values = np.where(np.isfinite(values), values, np.nan)
    if not len(values):
        raise ValueError(
            f"the run of {history.name!r} has no evaluations and no metrics: there is "
            "nothing to draw; give simulate an eval_every"
        )
    starts = ends[np.flatnonzero(np.diff(history.stage))]
    starts = starts[(starts >= places[0]) & (starts <= places[-1])]
    with mpl.rc_context(LOOK):
        if ax is None:
            ax = new_figure((6.4, 4.0)).subplots()
        (line,) = ax.plot(places, values, marker=".", label=plain(history.name))
        if len(starts):
            ax.plot(
                starts,
                np.interp(starts, places, values),
                linestyle="",
                marker="o",
                markerfacecolor="white",
                markeredgecolor=line.get_color(),
                label="a stage begins",
            )
        ax.set(xlabel=X_LABELS[x], ylabel=label)
        if not is_evaluated and np.nanmin(values, initial=np.inf) > 0:
            ax.set_yscale("log")
        ax.set_xlim(left=0)
        ax.grid(visible=True)
        ax.legend(framealpha=0.9, edgecolor="none")
    return ax.figure  # pyright: ignore[reportReturnType]
