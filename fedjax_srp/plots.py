"""Figures over simulated time. Matplotlib is imported when a figure is drawn, and pyplot never.

Everything here takes `histories` as one `History`, a list of them, or a dict from label to `History` or to a list of
repeats. Histories of one name in a list are repeats too: use a dict to tell runs of the same method apart. A method of
the paper keeps its colour in every figure, solid where participation doubles and dashed for its non-doubling twin.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedjax_srp.history import History

    Histories = History | Sequence[History] | Mapping[str, History | Sequence[History]]


class Style(NamedTuple):
    """How a method looks."""

    label: str
    color: str
    linestyle: Literal["-", "--", ":"]


# Okabe and Ito's palette, told apart with every common colour blindness.
STYLES = {
    "srpfl": Style("SRPFL", "#0072B2", "-"),
    "fedrep": Style("FedRep", "#0072B2", "--"),
    "lg_srpfl": Style("LG-SRPFL", "#D55E00", "-"),
    "lg_fedavg": Style("LG-FedAvg", "#D55E00", "--"),
    "flanp_fedavg": Style("FLANP", "#009E73", "-"),
    "fedavg": Style("FedAvg", "#009E73", "--"),
    "flanp_fedavg_ft": Style("FLANP-FT", "#CC79A7", "-"),
    "fedavg_ft": Style("FedAvg-FT", "#CC79A7", "--"),
    "hf_maml": Style("HF-MAML", "#333333", ":"),
}
_CYCLE_COLORS = ("#E69F00", "#56B4E9", "#882255", "#117733", "#999933", "#332288")
_LINESTYLES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
_CYCLE = tuple(itertools.product(_LINESTYLES, _CYCLE_COLORS))
_RC: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "legend.title_fontsize": 8,
    "legend.handlelength": 3.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
}
_TIME_LABEL = "simulated time (time units)"
_MAX_MARKED = 40  # evaluations on a line up to which each gets a dot

Curve = Callable[["History"], tuple[np.ndarray, np.ndarray]]  # a history's times and values


def accuracy_over_time(
    histories: Histories, communication: float = 0.0, evaluation: str | None = None, ax: Axes | None = None
) -> Figure:
    """Mean test accuracy of every method over simulated time.

    Lines join the evaluations; a hollow circle marks where a new stage of participation begins. Repeats are drawn as
    their mean with a band from the lowest to the highest run, interpolated between evaluations and only where every
    repeat has values: nothing is drawn beyond the end of the shortest.

    Args:
        histories: see the module.
        communication: cost per communicating round, in time units.
        evaluation: name of the evaluation; None takes the default one of every history.
        ax: axes to draw in; None makes a figure.

    Returns:
        The figure; display it in a notebook or call `savefig`.

    Raises:
        ValueError: when there is nothing to draw or a history lacks the evaluation.
    """
    groups = _groups(histories)
    names = _evaluation_names(groups, evaluation)
    curve = _accuracy_curve(communication, evaluation)
    score = "/".join(dict.fromkeys(run.score_name for repeats in groups.values() for run in repeats))
    ylabel = f"mean test {score}\n({names[0]})" if len(names) == 1 else f"mean test {score}"
    return _single(groups, curve, _labels(groups, evaluation, names), communication, ylabel, ax)


def metric_over_time(
    histories: Histories, metric: str | None = None, communication: float = 0.0, ax: Axes | None = None
) -> Figure:
    """A per-round metric over simulated time, logarithmic where all values are positive (linear tasks: "distance").

    Args:
        histories: see the module.
        metric: its name; None takes the first one of the first history.
        communication: cost per communicating round, in time units.
        ax: axes to draw in; None makes a figure.

    Raises:
        ValueError: when there is nothing to draw or a history lacks the metric.
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

    figure = _single(groups, curve, _labels(groups), communication, str(name).replace("_", " "), ax)
    if not any((run.metrics[str(name)] <= 0).any() for run in runs):
        (ax or figure.axes[0]).set_yscale("log")
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
        ValueError: a run has no metric "distance", or repeats differ in participants; `a` out of range.
    """
    import matplotlib as mpl

    from fedjax_srp import theory

    runs = list(histories) if isinstance(histories, Sequence) else [histories]
    for run in runs:
        if "distance" not in run.metrics or not np.array_equal(run.cohort_size, runs[0].cohort_size):
            raise ValueError("histories must have the metric 'distance' and the same participants in every round")
    rounds, sizes = runs[0].round, runs[0].cohort_size
    measured = np.array([run.metrics["distance"] for run in runs])
    low, middle, high = measured.min(axis=0), measured.mean(axis=0), measured.max(axis=0)
    ratios = sizes / (sizes[0] if initial is None else initial)
    predicted = np.concatenate([middle[:1], theory.distances(a, ratios[1:], float(middle[0]))])
    floors = np.array([theory.fixed_point(a, float(ratio)) for ratio in ratios])
    with mpl.rc_context(_RC):
        if ax is None:
            ax = _new_figure((6.4, 4.0)).subplots()
        ax.plot(rounds, middle, color="#0072B2", label="measured" + (f" ({len(runs)} runs)" if len(runs) > 1 else ""))
        ax.fill_between(rounds, low, high, color="#0072B2", alpha=0.14, linewidth=0)
        ax.plot(rounds, np.minimum(predicted, 1), "--", color="#D55E00", label=f"eq. 9, a = {a:.3g}")
        floors = np.where(floors < 1, floors, np.nan)
        ax.plot(rounds, floors, ":", drawstyle="steps-mid", color="#D55E00", label="its fixed point")
        for start in [0, *np.flatnonzero(np.diff(sizes)) + 1]:
            ax.axvline(float(start), color="#666666", linewidth=0.8)  # start rounds are completed
            ax.annotate(f" n = {sizes[start]}", (start, 1), xycoords=("data", "axes fraction"), fontsize=8)
        ax.set(xlabel="round", ylabel="distance", yscale="log", xlim=(0, rounds[-1]))
        ax.legend(framealpha=0.9, edgecolor="none")
        return ax.figure  # pyright: ignore[reportReturnType]


def figure3(
    histories_by_dataset: Mapping[str, Histories],
    communications: Sequence[float] = (0, 10, 100),
    evaluation: str | None = None,
    panel_size: tuple[float, float] | None = None,
    logarithmic: bool = False,
) -> Figure:
    """Accuracy over simulated time: a column a data set, a row a communication cost, as in figure 3 of SRPFL's paper.

    Args:
        histories_by_dataset: title of the column -> histories, see the module.
        communications: costs per communicating round, in time units.
        evaluation: name of the evaluation; None takes the default one of every history.
        panel_size: width and height of one panel, in inches; None fits the legend.
        logarithmic: draw time on a logarithmic axis, where a speed-up is a shift.

    Raises:
        ValueError: when there is nothing to draw or a history lacks the evaluation.
    """
    import matplotlib as mpl

    columns = {title: _groups(histories) for title, histories in histories_by_dataset.items()}
    if not columns or not len(communications):
        raise ValueError("figure3 needs at least one data set and one communication cost")
    merged: dict[str, list[History]] = {}
    for groups in columns.values():
        for label, repeats in groups.items():
            merged.setdefault(label, []).extend(repeats)
    names = _evaluation_names(merged, evaluation)
    styles, labels = _styles(merged), _labels(merged, evaluation, names, count=False)
    panel_size = panel_size or (max(3.4, 7.2 / len(columns)), 2.5)
    with mpl.rc_context(_RC):
        size = (panel_size[0] * len(columns) + 0.4, panel_size[1] * len(communications) + 0.9)
        figure = _new_figure(size)
        panels = figure.subplots(len(communications), len(columns), squeeze=False, sharey="col")
        handles: dict[str, Any] = {}
        for row, communication in zip(panels, communications, strict=True):
            curve = _accuracy_curve(communication, evaluation)
            for ax, (title, groups) in zip(row, columns.items(), strict=True):
                handles |= _draw(ax, groups, curve, styles, labels, communication)
                ax.set_title(f"{title}, communication {communication:g}")
                if logarithmic:
                    ax.set_xscale("log")
                    ax.autoscale(axis="x")
                else:
                    ax.locator_params(axis="x", nbins=5)
        for ax in panels[-1]:
            ax.set_xlabel(_TIME_LABEL)
        for ax in panels[:, 0]:
            ax.set_ylabel("mean test accuracy")
        ordered = {label: handles[label] for label in [*labels.values(), *handles] if label in handles}
        notes = [f"evaluation: {names[0]}"] if len(names) == 1 else []
        counts = sorted({len(repeats) for groups in columns.values() for repeats in groups.values()})
        if counts[-1] > 1:
            runs = "/".join(map(str, counts))
            notes.append(f"line: mean of {runs} runs, band: lowest to highest")
        fitting = max(2, int(size[0] / 2.4))  # in inches
        legend_rows = -(-len(ordered) // fitting)  # ceiling, so that twins stand above each other
        figure.legend(
            list(ordered.values()),
            list(ordered),
            loc="outside lower center",
            ncols=-(-len(ordered) // legend_rows),
            title="; ".join(notes) or None,
            frameon=False,
        )
    return figure


def _single(
    groups: dict[str, list[History]],
    curve: Curve,
    labels: dict[str, str],
    communication: float,
    ylabel: str,
    ax: Axes | None,
) -> Figure:
    import matplotlib as mpl

    with mpl.rc_context(_RC):
        if ax is None:
            ax = _new_figure((6.4, 4.0)).subplots()
        handles = _draw(ax, groups, curve, _styles(groups), labels, communication)
        ax.set_xlabel(_TIME_LABEL + (f", {communication:g} per communication" if communication else ""))
        ax.set_ylabel(ylabel)
        repeated = any(len(repeats) > 1 for repeats in groups.values())
        title = "line: mean of the runs\nband: lowest to highest" if repeated else None
        ax.legend(list(handles.values()), list(handles), title=title, framealpha=0.9, edgecolor="none")
        return ax.figure  # pyright: ignore[reportReturnType]


def _draw(
    ax: Axes,
    groups: dict[str, list[History]],
    curve: Curve,
    styles: dict[str, Style],
    labels: dict[str, str],
    communication: float,
) -> dict[str, Any]:
    """Draws one line per group and returns legend label -> artist."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    staged = False
    for label, repeats in groups.items():
        _, color, linestyle = styles[label]
        text = labels[label]
        times, low, middle, high = _band(label, [curve(run) for run in repeats])
        marker = "." if len(repeats) == 1 and len(times) <= _MAX_MARKED else ""
        ax.plot(times, middle, color=color, linestyle=linestyle, marker=marker, markersize=5, label=text)
        handles[text] = Line2D([], [], color=color, linestyle=linestyle)  # without the dots, which hide the dashes
        if len(repeats) > 1:
            ax.fill_between(times, low, high, color=color, alpha=0.14, linewidth=0)
            continue
        starts = _stage_starts(repeats[0], curve, communication)
        staged |= len(starts[0]) > 0
        ax.plot(*starts, linestyle="", marker="o", markersize=6, mfc="white", mec=color, mew=1.4, label="_stages")
    if staged:
        handles["a stage begins"] = Line2D([], [], linestyle="", marker="o", markersize=6, mfc="white", mec="#555555")
    ax.set_xlim(left=0)
    ax.grid(visible=True)
    ax.set_axisbelow(True)
    return handles


def _band(label: str, curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Times, lowest, mean and highest value of several curves, on the union of their times where all are defined."""
    if len(curves) == 1:
        times, values = curves[0]
        return times, values, values, values
    start, end = max(times[0] for times, _ in curves), min(times[-1] for times, _ in curves)
    if start > end:
        raise ValueError(f"the repeats of {label!r} share no simulated time: draw them one by one, with a dict")
    grid = np.unique(np.concatenate([times for times, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    values = np.array([np.interp(grid, times, values) for times, values in curves])  # nan spreads to its neighbours
    return grid, values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def _stage_starts(history: History, curve: Curve, communication: float) -> tuple[np.ndarray, np.ndarray]:
    """Points on a history's own line at the times when a stage after the first begins."""
    times, values = curve(history)
    ends = history.elapsed(communication)[np.flatnonzero(np.diff(history.stage))]  # of the last round of a stage
    ends = ends[(ends >= times[0]) & (ends <= times[-1])]
    return ends, np.interp(ends, times, values)


def _accuracy_curve(communication: float, evaluation: str | None) -> Curve:
    return lambda history: (history.eval_elapsed(communication), history.mean_scores(evaluation))


def _groups(histories: Histories) -> dict[str, list[History]]:
    """Label -> repeats, in the order given."""
    groups: dict[str, list[History]] = {}
    if isinstance(histories, Mapping):
        for label, value in histories.items():
            groups[label] = list(value) if isinstance(value, Sequence) else [value]
    else:
        for history in histories if isinstance(histories, Sequence) else [histories]:
            groups.setdefault(history.name, []).append(history)
    empty = next((label for label, repeats in groups.items() if not repeats), None)
    if not groups or empty is not None:
        where = "histories" if empty is None else f"histories[{empty!r}]"
        raise ValueError(f"{where} is empty: give at least one History")
    return groups


def _evaluation_names(groups: dict[str, list[History]], evaluation: str | None) -> list[str]:
    """Names of the evaluations that will be drawn, checked to be there."""
    names: dict[str, None] = {}
    for repeats in groups.values():
        for run in repeats:
            if not len(run.scores(evaluation)):
                raise ValueError(
                    f"the run of {run.name!r} has no evaluations: give simulate an eval_every, or plot one of its "
                    f"metrics ({', '.join(run.metrics) or 'it has none'}) with metric_over_time"
                )
            names[evaluation or str(run.evaluation)] = None
    return list(names)


def _key(label: str) -> str:
    return label.lower().replace("-", "_").replace(" ", "_")


def _styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style per label: that of the method of the paper it names, else the next one of the cycle."""
    cycle = itertools.cycle(_CYCLE)
    styles: dict[str, Style] = {}
    for label in labels:
        known = STYLES.get(_key(label))
        if known is None or known in styles.values():
            linestyle, color = next(cycle)
            known = Style(label, color, linestyle)
        styles[label] = known
    return styles


def _labels(
    groups: dict[str, list[History]], evaluation: str | None = None, names: Sequence[str] = (), count: bool = True
) -> dict[str, str]:
    """What the legend says of each group: with the evaluation where lines differ in it, and who diverged."""
    labels: dict[str, str] = {}
    for label, style in _styles(groups).items():
        repeats = groups[label]
        remarks = [f"{len(repeats)} runs"] if count and len(repeats) > 1 else []
        if len(names) > 1:
            remarks.append("/".join(dict.fromkeys(evaluation or str(run.evaluation) for run in repeats)))
        if diverged := [run.diverged for run in repeats if run.diverged is not None]:
            remarks.append(f"diverged in round {diverged[0]}" if len(repeats) == 1 else f"{len(diverged)} diverged")
        name = style.label if label in STYLES else label
        labels[label] = f"{name} ({', '.join(remarks)})" if remarks else name
    return labels


def _new_figure(size: tuple[float, float]) -> Figure:
    """A figure without pyplot, so nothing global refers to it, which a notebook displays all the same."""
    import io

    import matplotlib.figure

    class NotebookFigure(matplotlib.figure.Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure(figsize=size, dpi=110, layout="constrained")
