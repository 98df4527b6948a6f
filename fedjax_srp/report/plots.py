"""Figures over simulated time. Matplotlib is imported when a figure is drawn, and pyplot never.

Everything here takes `histories` as one `History`, a list of them, or a dict from label to `History` or to a list of
repeats. Histories of one name in a list are repeats too, so they may differ in nothing but the seed: use a dict to tell
runs of the same method apart. A method of the paper keeps its colour in every figure, solid where participation doubles
and dashed for its non-doubling twin. A legend with many or long entries stands below; within axes of the caller's, if
their figure has no layout (`layout="constrained"`) that would make room for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_srp.report import drawing, table
from fedjax_srp.report.drawing import Curve, Spread
from fedjax_srp.report.page import report_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedjax_srp.history import History
    from fedjax_srp.report.drawing import Histories

__all__ = ["accuracy_over_time", "contraction_over_run", "figure3", "metric_over_time", "report_page"]


def accuracy_over_time(
    histories: Histories,
    communication: float = 0.0,
    evaluation: str | None = None,
    ax: Axes | None = None,
    spread: Spread = "range",
) -> Figure:
    """Mean test accuracy of every method over simulated time.

    Lines join the evaluations; a hollow circle marks where a new stage of participation begins. Repeats are drawn as
    their mean with a band, interpolated between evaluations and only where every repeat has values: nothing is drawn
    beyond the end of the shortest. Where that is less than half of the time that the shortest repeat lasts, each is a
    thin line of its own.

    Args:
        histories: see the module.
        communication: cost per communicating round, in time units.
        evaluation: name of the evaluation; None takes the default one of every history.
        ax: axes to draw in; None makes a figure.
        spread: what a band shows of the repeats: "range", from the lowest to the highest run, or "std", a sample
            standard deviation on both sides of their mean.

    Returns:
        The figure; display it in a notebook or call `savefig`.

    Raises:
        ValueError: when there is nothing to draw, a history lacks the evaluation, or a list has runs of one name that
            are no repeats; another spread.
    """
    groups = _groups(histories)
    names = drawing.evaluation_names(groups, evaluation)
    curve = drawing.accuracy_curve(communication, evaluation)
    score = "/".join(dict.fromkeys(run.score_name for repeats in groups.values() for run in repeats))
    ylabel = f"mean test {score}\n({names[0]})" if len(names) == 1 else f"mean test {score}"
    return _single(groups, curve, drawing.labels(groups, evaluation, names), communication, ylabel, ax, spread)


def metric_over_time(
    histories: Histories,
    metric: str | None = None,
    communication: float = 0.0,
    ax: Axes | None = None,
    spread: Spread = "range",
) -> Figure:
    """A per-round metric over simulated time, logarithmic where all that is drawn is positive (linear: "distance").

    Args:
        histories: see the module.
        metric: its name; None takes the first one of the first history.
        communication: cost per communicating round, in time units.
        ax: axes to draw in; None makes a figure.
        spread: what a band shows, as in `accuracy_over_time`.

    Raises:
        ValueError: when there is nothing to draw, a history lacks the metric, or a list has runs of one name that are
            no repeats; another spread.
    """
    groups = _groups(histories)
    runs = [run for repeats in groups.values() for run in repeats]
    name = next(iter(runs[0].metrics), None) if metric is None else metric
    for run in runs:
        if not run.num_rounds:
            raise ValueError(f"the run of {run.name!r} has no rounds: there is nothing to draw")
        if name is None or name not in run.metrics:
            available = ", ".join(run.metrics) or "none"
            raise ValueError(f"metric={metric!r} is not in the run of {run.name!r}; available: {available}")

    def curve(history: History) -> tuple[np.ndarray, np.ndarray]:
        values = history.metrics[str(name)]
        return history.elapsed(communication), np.where(np.isfinite(values), values, np.nan)

    ylabel = str(name).replace("_", " ")
    figure = _single(groups, curve, drawing.labels(groups), communication, ylabel, ax, spread)
    _logarithmic(ax or figure.axes[0])
    return figure


def contraction_over_run(
    histories: History | Sequence[History], a: float, initial: float | None = None, ax: Axes | None = None
) -> Figure:
    """The measured distance of a run on a linear task over its rounds, and what SRPFL's theory predicts beside it.

    The prediction iterates eq. 9 as an equality, dist+ = dist sqrt(1-a) + a / sqrt((n/n0)(1-a)), with the run's own
    number n of participants, from the distance measured after round 1; dotted, the fixed point of every stage. Values
    above 1 say nothing and are cut. Vertical lines mark where a stage begins, with its n.

    Args:
        histories: one run, or repeats with equal numbers of participants, drawn as their mean with a band from the
            lowest to the highest.
        a: `theory.contraction_rate`.
        initial: n0, which scales the noise of the prediction and nothing else; None takes the participants of round 1.
        ax: axes to draw in; None makes a figure.

    Raises:
        ValueError: no run or no round, a run without the metric "distance" or one that diverged in round 1, repeats
            that differ in participants; `a` out of range.
    """
    import matplotlib as mpl

    from fedjax_srp import theory

    runs = list(histories) if isinstance(histories, Sequence) else [histories]
    if not runs or not runs[0].num_rounds:
        raise ValueError(f"histories has no {'rounds' if runs else 'runs'}: give a run on a linear task, or repeats")
    for run in runs:
        if "distance" not in run.metrics or not np.array_equal(run.cohort_size, runs[0].cohort_size):
            raise ValueError("histories must have the metric 'distance' and the same participants in every round")
    rounds, sizes = runs[0].round, runs[0].cohort_size
    measured = np.array([run.metrics["distance"] for run in runs])
    low, middle, high = measured.min(axis=0), measured.mean(axis=0), measured.max(axis=0)
    if not np.isfinite(middle[0]):
        raise ValueError(f"the distance after round 1 is {middle[0]}, from which nothing follows: give runs that learn")
    ratios = sizes / (sizes[0] if initial is None else initial)
    predicted = np.concatenate([middle[:1], theory.distances(a, ratios[1:], float(middle[0]))])
    floors = np.array([theory.fixed_point(a, float(ratio)) for ratio in ratios])
    with mpl.rc_context(drawing.RC):
        if ax is None:
            ax = drawing.new_figure((6.4, 4.0)).subplots()
        ax.plot(rounds, middle, color="#0072B2", label="measured" + (f" ({len(runs)} runs)" if len(runs) > 1 else ""))
        ax.fill_between(rounds, low, high, color="#0072B2", alpha=0.14, linewidth=0)
        ax.plot(rounds, np.minimum(predicted, 1), "--", color="#D55E00", label=f"eq. 9, a = {a:.3g}")
        floors = np.where(floors < 1, floors, np.nan)
        ax.plot(rounds, floors, ":", drawstyle="steps-mid", color="#D55E00", label="its fixed point")
        for start in [0, *np.flatnonzero(np.diff(sizes)) + 1]:
            ax.axvline(float(start), color="#666666", linewidth=0.8)  # start rounds are completed
            ax.annotate(f" n = {sizes[start]}", (start, 1), xycoords=("data", "axes fraction"), fontsize=8)
        ax.set(xlabel="round", ylabel="distance", xlim=(0, rounds[-1]))
        _logarithmic(ax)
        ax.legend(framealpha=0.9, edgecolor="none")
        return ax.figure  # pyright: ignore[reportReturnType]


def figure3(
    histories_by_dataset: Mapping[str, Histories],
    communications: Sequence[float] = (0, 10, 100),
    evaluation: str | None = None,
    panel_size: tuple[float, float] | None = None,
    logarithmic: bool = False,
    spread: Spread = "range",
) -> Figure:
    """Accuracy over simulated time: a column a data set, a row a communication cost, as in figure 3 of SRPFL's paper.

    Args:
        histories_by_dataset: title of the column -> histories, see the module.
        communications: costs per communicating round, in time units.
        evaluation: name of the evaluation; None takes the default one of every history.
        panel_size: width and height of one panel, in inches; None fits the legend.
        logarithmic: draw time on a logarithmic axis, where a speed-up is a shift.
        spread: what a band shows, as in `accuracy_over_time`.

    Raises:
        ValueError: when there is nothing to draw, a history lacks the evaluation, a list has runs of one name that are
            no repeats, or the data sets have no titles; another spread, no cost among costs.
    """
    import matplotlib as mpl

    if not isinstance(histories_by_dataset, Mapping):
        raise ValueError(
            f"histories_by_dataset is a {type(histories_by_dataset).__name__}: give a dict from data set to histories, "
            "e.g. {'digits': histories}; accuracy_over_time draws one data set"
        )
    drawing.check_spread(spread)
    columns = {title: _groups(histories) for title, histories in histories_by_dataset.items()}
    table.check_communications(communications)
    if not columns:
        raise ValueError("histories_by_dataset is empty: give at least one data set")
    merged: dict[str, list[History]] = {}
    for groups in columns.values():
        for label, repeats in groups.items():
            merged.setdefault(label, []).extend(repeats)
    names = drawing.evaluation_names(merged, evaluation)
    styles, labels = drawing.styles(merged), drawing.labels(merged, evaluation, names, count=False)
    panel_size = panel_size or (max(3.4, 7.2 / len(columns)), 2.5)
    with mpl.rc_context(drawing.RC):
        size = (panel_size[0] * len(columns) + 0.4, panel_size[1] * len(communications) + 0.9)
        figure = drawing.new_figure(size)
        panels = figure.subplots(len(communications), len(columns), squeeze=False, sharey="col")
        handles: dict[str, Any] = {}
        for row, communication in zip(panels, communications, strict=True):
            curve = drawing.accuracy_curve(communication, evaluation)
            for ax, (title, groups) in zip(row, columns.items(), strict=True):
                handles |= drawing.draw(ax, groups, curve, styles, labels, communication, spread)
                ax.set_title(f"{title}, C = {communication:g}")
                if logarithmic:
                    ax.set_xscale("log")
                    ax.autoscale(axis="x")
                    drawing.log_ticks(ax)
                else:
                    ax.locator_params(axis="x", nbins=5)
        for ax in panels[-1]:
            ax.set_xlabel(drawing.TIME_LABEL)
        for ax in panels[:, 0]:
            ax.set_ylabel("mean test accuracy")
        ordered = {label: handles[label] for label in [*labels.values(), *handles] if label in handles}
        notes = [f"evaluation: {names[0]}"] if len(names) == 1 else []
        counts = sorted({len(repeats) for groups in columns.values() for repeats in groups.values()})
        if counts[-1] > 1:
            runs = "/".join(map(str, counts))
            notes.append(f"line: mean of {runs} runs, band: {drawing.SPREADS[spread]}")
        notes += ["C: cost of a communicating round"]
        height = drawing.legend_below(figure, ordered, size[0], notes, loc="outside lower center")
        figure.set_figheight(max(size[1], panel_size[1] * len(communications) + 0.3 + height))
    return figure


def _groups(histories: Histories) -> dict[str, list[History]]:
    drawing.check_repeats(histories)
    return drawing.groups(histories)


def _logarithmic(ax: Axes) -> None:
    """Where all that is drawn is positive; matplotlib refuses it where nothing is."""
    if 0 < ax.dataLim.ymin < np.inf:
        ax.set_yscale("log")


def _single(
    groups: dict[str, list[History]],
    curve: Curve,
    labels: dict[str, str],
    communication: float,
    ylabel: str,
    ax: Axes | None,
    spread: Spread,
) -> Figure:
    import matplotlib as mpl

    drawing.check_spread(spread)
    with mpl.rc_context(drawing.RC):
        own = None if ax is not None else drawing.new_figure((6.4, 4.0))
        ax = ax if own is None else own.subplots()
        assert ax is not None
        handles = drawing.draw(ax, groups, curve, drawing.styles(groups), labels, communication, spread)
        ax.set_xlabel(drawing.TIME_LABEL + (f", {communication:g} per communication" if communication else ""))
        ax.set_ylabel(ylabel)
        repeated = any(len(repeats) > 1 for repeats in groups.values())
        notes = ["line: mean of the runs", f"band: {drawing.SPREADS[spread]}"] if repeated else []
        if drawing.fits_inside(handles) or ax.figure.get_layout_engine() is None:
            drawing.legend_inside(ax, handles, notes)
        else:
            height = drawing.legend_under(ax, handles, notes)
            if own is not None:
                own.set_figheight(4.0 + height)
        return ax.figure  # pyright: ignore[reportReturnType]
