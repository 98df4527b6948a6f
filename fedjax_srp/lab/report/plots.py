"""Figures over simulated time. Matplotlib is imported when one is drawn; pyplot never is.

All functions take `histories` as one `History`, a list of them, or a dict from label to `History`
or to a list of repeats. Histories of one name in a list are repeats too, so they may differ only in
the seed: use a dict to separate runs of the same method. A method of the paper has the same colour
in every figure; where some methods double their cohorts, their lines are solid and those of others
dashed. A large legend is below the axes; in your own axes, it is inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_srp import theory
from fedjax_srp.lab.report import drawing, table
from fedjax_srp.lab.report.drawing import Curve, Histories, Spread, X
from fedjax_srp.lab.report.page import report_page
from fedjax_srp.parts.checks import check_known, checked
from fedjax_srp.results.figure import new_figure
from fedjax_srp.results.measures import Of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedjax_srp.results.history import History

__all__ = [
    "accuracy_over_time",
    "contraction_over_run",
    "figure3",
    "metric_over_time",
    "report_page",
]

# colours of `contraction_over_run`
MEASURED = "#0072B2"
PREDICTED = "#D55E00"


@checked
def accuracy_over_time(
    histories: Histories,
    communication: float = 0.0,
    evaluation: str | None = None,
    ax: Axes | None = None,
    spread: Spread = "range",
    x: X = "time",
    of: Of = "mean",
    target: float | None = None,
) -> Figure:
    """Draw the mean accuracy of every method over simulated time.

    Lines join the evaluations; a hollow circle marks the beginning of a stage of participation.
    Repeats are drawn as their mean with a band, interpolated between evaluations, from the last
    first evaluation to the end of the longest run: a run that has ended keeps its last value, and
    the line gets thinner. So a line ends with the final accuracy of the table. If some repeats
    begin after others end, each is drawn as a thin line.

    Args:
        histories: label -> a history, or a list of repeats; or one history, or a list of them.
        communication: cost per communicating round, in time units.
        evaluation: name of the evaluation; None takes the default one of every history.
        ax: axes to draw in; None makes a figure.
        spread: of repeats: "range", a band from the lowest to the highest run; "std", a band of a
            sample standard deviation on both sides of their mean; "seeds", a thin line for each run
            and no mean.
        x: "time" for simulated time, "rounds" for completed rounds.
        of: group of clients over which the mean is taken, as in `History.group_scores`.
        target: accuracy, or another score, to mark by a dotted line.

    Returns:
        The figure; display it in a notebook or call `savefig`.

    Raises:
        ValueError: there is nothing to draw, a history lacks the evaluation, or a list has runs of
            one name that are not repeats; an unknown spread or x.
    """
    groups = drawing.checked_groups(histories)
    names = drawing.evaluation_names(groups, evaluation)
    curve = drawing.accuracy_curve(communication, evaluation, x, of)
    labels = drawing.labels(groups, evaluation, names)
    axis_labels = {
        "xlabel": _x_label(communication, x),
        "ylabel": drawing.score_label(groups, names, of),
    }
    figure = _one_panel(groups, curve, labels, axis_labels, ax, spread)
    if target is not None:
        panel: Any = ax or figure.axes[0]
        panel.axhline(target, color="#555555", linewidth=1.0, linestyle=":")
    return figure


@checked
def metric_over_time(
    histories: Histories,
    metric: str | None = None,
    communication: float = 0.0,
    ax: Axes | None = None,
    spread: Spread = "range",
    x: X = "time",
) -> Figure:
    """Draw a per-round metric over simulated time, logarithmic if all values are positive.

    Args:
        histories: as described at the top of this module.
        metric: name, e.g. "distance" for linear tasks; None takes the first one of the first
            history.
        communication: cost per communicating round, in time units.
        ax: axes to draw in; None makes a figure.
        spread: of repeats, as in `accuracy_over_time`.
        x: as in `accuracy_over_time`.

    Raises:
        ValueError: there is nothing to draw, a history lacks the metric, or a list has runs of one
            name that are not repeats; an unknown spread or x.
    """
    groups = drawing.checked_groups(histories)
    runs = [run for repeats in groups.values() for run in repeats]
    name = metric
    if name is None:
        name = next(iter(runs[0].metrics), None)
    for run in runs:
        if not run.num_rounds:
            raise ValueError(
                f"the run of {run.name!r} has no rounds: there is nothing to draw"
            )
        check_known("metric", [name], run.metrics, of=f"the run of {run.name!r}")

    def curve(history: History) -> Curve:
        values = history.metrics[str(name)]
        ends = history.round if x == "rounds" else history.elapsed(communication)
        return Curve(ends, np.where(np.isfinite(values), values, np.nan), ends)

    y_label = drawing.plain(str(name).replace("_", " "))
    axis_labels = {"xlabel": _x_label(communication, x), "ylabel": y_label}
    figure = _one_panel(groups, curve, drawing.labels(groups), axis_labels, ax, spread)
    _logarithmic(ax or figure.axes[0])
    return figure


def contraction_over_run(
    histories: History | Sequence[History],
    a: float,
    initial: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the distance of a run on a linear task over its rounds, and SRPFL's prediction.

    The prediction iterates eq. 9 as an equality, dist+ = dist sqrt(1-a) + a / sqrt((n/n0)(1-a)),
    with the run's own number n of participants, from the distance measured after round 1. The
    dotted line is the fixed point of each stage. Values above 1 are meaningless and cut off.
    Vertical lines mark the beginning of each stage, with its n.

    Args:
        histories: one run, or repeats with equal numbers of participants, drawn as their mean with
            a band from the lowest to the highest.
        a: `theory.contraction_rate`.
        initial: n0, which only scales the noise of the prediction; None takes the participants of
            round 1.
        ax: axes to draw in; None makes a figure.

    Raises:
        ValueError: no run or no round, a round without participants, a run without the metric
            "distance" or one that diverged in round 1, repeats that differ in participants; `a` out
            of range.
    """
    import matplotlib as mpl

    runs = list(histories) if isinstance(histories, Sequence) else [histories]
    if not runs or not runs[0].num_rounds:
        missing = "rounds" if runs else "runs"
        raise ValueError(
            f"histories has no {missing}: give a run on a linear task, or repeats"
        )
    for run in runs:
        if "distance" not in run.metrics or not np.array_equal(
            run.cohort_size, runs[0].cohort_size
        ):
            raise ValueError(
                "histories must have the metric 'distance' and the same participants in every round"
            )
    rounds = runs[0].round
    sizes = runs[0].cohort_size
    if not sizes.all():
        raise ValueError(
            f"round {rounds[np.argmin(sizes)]} has no participants, so there is no prediction: "
            "give runs with participants in every round"
        )
    measured = np.array([run.metrics["distance"] for run in runs])
    low = measured.min(axis=0)
    middle = measured.mean(axis=0)
    high = measured.max(axis=0)
    if not np.isfinite(middle[0]):
        raise ValueError(
            f"the distance after round 1 is {middle[0]}, so there is no prediction: "
            "give runs that learn"
        )
    if initial is None:
        initial = sizes[0]
    ratios = sizes / initial
    predicted = np.concatenate(
        [middle[:1], theory.distances(a, ratios[1:], float(middle[0]))]
    )
    floors = np.array([theory.fixed_point(a, float(ratio)) for ratio in ratios])
    with mpl.rc_context(drawing.RC):
        if ax is None:
            ax = new_figure((6.4, 4.0)).subplots()
        label = "measured"
        if len(runs) > 1:
            label += f" ({len(runs)} runs)"
        ax.plot(rounds, middle, color=MEASURED, label=label)
        ax.fill_between(rounds, low, high, color=MEASURED, alpha=0.14, linewidth=0)
        label = f"eq. 9, a = {a:.3g}"
        ax.plot(rounds, np.minimum(predicted, 1), "--", color=PREDICTED, label=label)
        floors = np.where(floors < 1, floors, np.nan)
        label = "its fixed point"
        ax.plot(rounds, floors, ":", drawstyle="steps-mid", color=PREDICTED, label=label)
        for start in [0, *np.flatnonzero(np.diff(sizes)) + 1]:
            # after `start` rounds
            ax.axvline(float(start), color="#666666", linewidth=0.8)
            at_top = ("data", "axes fraction")
            ax.annotate(f" n = {sizes[start]}", (start, 1), xycoords=at_top, fontsize=8)
        ax.set(xlabel="round", ylabel="distance", xlim=(0, rounds[-1]))
        _logarithmic(ax)
        ax.legend(framealpha=0.9, edgecolor="none")
        return ax.figure  # pyright: ignore[reportReturnType]


@checked
def figure3(
    histories_by_dataset: Mapping[str, Histories],
    communications: Sequence[float] = (0, 10, 100),
    evaluation: str | None = None,
    panel_size: tuple[float, float] | None = None,
    logarithmic: bool = False,
    spread: Spread = "range",
) -> Figure:
    """Draw accuracy over simulated time as SRPFL's figure 3, data sets in columns, costs in rows.

    Args:
        histories_by_dataset: title of the column -> histories, as described at the top of this
            module.
        communications: costs per communicating round, in time units.
        evaluation: name of the evaluation; None takes the default one of every history.
        panel_size: width and height of one panel, in inches; None fits the legend.
        logarithmic: draw time on a logarithmic axis, on which a speed-up is a shift.
        spread: of repeats, as in `accuracy_over_time`.

    Raises:
        ValueError: there is nothing to draw, a history lacks the evaluation, a list has runs of one
            name that are not repeats, or the data sets have no titles; an unknown spread, an
            invalid cost.
    """
    import matplotlib as mpl

    columns: dict[str, dict[str, list[History]]] = {}
    for title, histories in histories_by_dataset.items():
        columns[title] = drawing.checked_groups(histories)
    table.check_communications(communications)
    if not columns:
        raise ValueError("histories_by_dataset is empty: give at least one data set")
    merged: dict[str, list[History]] = {}
    for groups in columns.values():
        for label, repeats in groups.items():
            merged.setdefault(label, []).extend(repeats)
    names = drawing.evaluation_names(merged, evaluation)
    styles = drawing.styles(merged)
    labels = drawing.labels(merged, evaluation, names, count=False)
    panel_width, panel_height = panel_size or (max(3.4, 7.2 / len(columns)), 2.5)
    width = panel_width * len(columns) + 0.4
    height = panel_height * len(communications) + 0.9
    with mpl.rc_context(drawing.RC):
        figure = new_figure((width, height))
        panels = figure.subplots(
            len(communications), len(columns), squeeze=False, sharey="col"
        )
        handles: dict[str, Any] = {}
        notes: dict[str, None] = {}
        for row, communication in zip(panels, communications, strict=True):
            curve = drawing.accuracy_curve(communication, evaluation)
            for ax, (title, groups) in zip(row, columns.items(), strict=True):
                new_handles, new_notes = drawing.draw(
                    ax, groups, curve, styles, labels, spread
                )
                handles |= new_handles
                notes |= dict.fromkeys(new_notes)
                ax.set_title(drawing.plain(f"{title}, C = {table.exact(communication)}"))
                if logarithmic:
                    ax.set_xscale("log")
                    ax.autoscale(axis="x")
                    drawing.log_ticks(ax)
                else:
                    ax.locator_params(axis="x", nbins=5)
        for ax in panels[-1]:
            ax.set_xlabel(drawing.TIME_LABEL)
        for ax in panels[:, 0]:
            ax.set_ylabel(drawing.score_label(merged, names))
        notes["C: cost of a communicating round"] = None
        drawing.legend_below(figure, handles, labels, notes, height - 0.6)
    return figure


def _x_label(communication: float, x: X) -> str:
    if x == "rounds":
        return "round"
    if not communication:
        return drawing.TIME_LABEL
    return f"{drawing.TIME_LABEL}, {table.exact(communication)} per communication"


def _logarithmic(ax: Axes) -> None:
    """Make the y axis logarithmic if there are values and all are positive."""
    if 0 < ax.dataLim.ymin < np.inf:
        ax.set_yscale("log")


def _one_panel(
    groups: dict[str, list[History]],
    curve: Callable[[History], Curve],
    labels: dict[str, str],
    axis_labels: Mapping[str, str],
    ax: Axes | None,
    spread: Spread,
) -> Figure:
    import matplotlib as mpl

    with mpl.rc_context(drawing.RC):
        panel: Any = new_figure((6.4, 4.0)).subplots() if ax is None else ax
        handles, notes = drawing.draw(
            panel, groups, curve, drawing.styles(groups), labels, spread
        )
        panel.set(**axis_labels)
        if ax is None and not drawing.is_small(handles):
            drawing.legend_below(panel.figure, handles, labels, notes, 4.0)
        else:
            drawing.legend_within(panel, handles, notes)
        return panel.figure
