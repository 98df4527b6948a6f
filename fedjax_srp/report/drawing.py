"""What every figure is drawn with: styles, bands over repeats, labels, figures without pyplot."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedjax_srp import methods
from fedjax_srp._checks import check_choice
from fedjax_srp.methods import RECIPES
from fedjax_srp.report import repeats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedjax_srp.history import History

    Histories = History | Sequence[History] | Mapping[Any, History | Sequence[History]]


Spread = Literal["range", "std"]
SPREADS: dict[str, str] = {"range": "lowest to highest", "std": "± standard deviation"}  # what a band shows


class Style(NamedTuple):
    """How a method looks."""

    label: str
    color: str
    linestyle: Literal["-", "--", ":"]


# Of methods without a colour of their own: Tol and Okabe and Ito, told apart with every common colour blindness.
CYCLE_COLORS = ("#E69F00", "#56B4E9", "#882255", "#117733", "#999933", "#332288")
LINESTYLES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
CYCLE = tuple(itertools.product(LINESTYLES, CYCLE_COLORS))
RC: dict[Any, Any] = {
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
THIN = {"linewidth": 0.9, "marker": ".", "markersize": 4}
APART = "thin: single runs, with little time in common"
TIME_LABEL = "simulated time (time units)"
MAX_MARKED = 40  # evaluations on a line up to which each gets a dot
MAX_ENTRIES, MAX_LETTERS = 5, 35  # of a legend, and of its longest entry: up to there it lies within the axes
LETTER, HANDLE = 0.067, 0.75  # mean width of a letter in a legend, and of a line with the room around it, in inches
ROW, AXIS = 0.2, 0.5  # height of a line of text in a legend, and of an axis with its name, in inches

Curve = Callable[["History"], tuple[np.ndarray, np.ndarray]]  # a history's times and values


def draw(
    ax: Axes,
    groups: dict[str, list[History]],
    curve: Curve,
    styles: dict[str, Style],
    labels: dict[str, str],
    communication: float,
    spread: Spread = "range",
) -> dict[str, Any]:
    """Draws one line per group and returns legend label -> artist; repeats apart in time get a thin line each."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    staged = thin = False
    for label, runs in groups.items():
        _, color, linestyle = styles[label]
        text, curves = labels[label], [curve(run) for run in runs]
        if are_apart(curves):
            thin = True
            for place, (times, values) in enumerate(curves):
                name = "_single" if place else text
                ax.plot(times, values, color=color, linestyle=linestyle, label=name, **THIN)
            handles[text] = Line2D([], [], color=color, linestyle=linestyle, linewidth=THIN["linewidth"])
            continue
        times, low, middle, high = band(curves, spread)
        marker = "." if len(runs) == 1 and len(times) <= MAX_MARKED else ""
        ax.plot(times, middle, color=color, linestyle=linestyle, marker=marker, markersize=5, label=text)
        handles[text] = Line2D([], [], color=color, linestyle=linestyle)  # without the dots, which hide the dashes
        if len(runs) > 1:
            ax.fill_between(times, low, high, color=color, alpha=0.14, linewidth=0)
            continue
        starts = stage_starts(runs[0], curve, communication)
        staged |= len(starts[0]) > 0
        ax.plot(*starts, linestyle="", marker="o", markersize=6, mfc="white", mec=color, mew=1.4, label="_stages")
    if staged:
        handles["a stage begins"] = Line2D([], [], linestyle="", marker="o", markersize=6, mfc="white", mec="#555555")
    if thin:
        handles[APART] = Line2D([], [], color="#555555", **THIN)
    ax.set_xlim(left=0)
    ax.grid(visible=True)
    ax.set_axisbelow(True)
    return handles


def _common_time(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """From where to where all curves are defined; backwards where they are nowhere."""
    return max(times[0] for times, _ in curves), min(times[-1] for times, _ in curves)


def are_apart(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether all curves are defined in less than half of the time of the shortest one, where a mean says little."""
    start, end = _common_time(curves)
    return len(curves) > 1 and bool(
        start >= end or end - start < 0.5 * min(times[-1] - times[0] for times, _ in curves)
    )


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]], spread: Spread = "range") -> tuple[np.ndarray, ...]:
    """Times, lower end, mean and upper end of several curves, on the union of their times where all are defined."""
    if len(curves) == 1:
        times, values = curves[0]
        return times, values, values, values
    start, end = _common_time(curves)
    grid = np.unique(np.concatenate([times for times, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    values = np.array([np.interp(grid, times, values) for times, values in curves])  # nan spreads to its neighbours
    mean = values.mean(axis=0)
    if spread == "range":
        return grid, values.min(axis=0), mean, values.max(axis=0)
    deviation = values.std(axis=0, ddof=1)
    return grid, mean - deviation, mean, mean + deviation


def stage_starts(history: History, curve: Curve, communication: float) -> tuple[np.ndarray, np.ndarray]:
    """Points on a history's own line at the times when a stage after the first begins."""
    times, values = curve(history)
    ends = history.elapsed(communication)[np.flatnonzero(np.diff(history.stage))]  # of the last round of a stage
    ends = ends[(ends >= times[0]) & (ends <= times[-1])]
    return ends, np.interp(ends, times, values)


def log_ticks(ax: Axes) -> None:
    """Plain numbers on a logarithmic axis of time, as many as its range has room for."""
    from matplotlib import ticker

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


def check_spread(spread: str) -> None:
    """Raises a ValueError of one line for a spread that is none."""
    check_choice("spread", spread, tuple(SPREADS))


def accuracy_curve(communication: float, evaluation: str | None) -> Curve:
    """Mean scores over simulated time."""
    return lambda history: (history.eval_elapsed(communication), history.mean_scores(evaluation))


def groups(histories: Histories) -> dict[str, list[History]]:
    """Label -> repeats, in the order given; a label that is no text becomes one.

    Raises:
        ValueError: nothing is there, or two labels are one text.
    """
    groups: dict[str, list[History]] = {}
    if isinstance(histories, Mapping):
        for label, value in histories.items():
            if str(label) in groups:
                raise ValueError(f"histories has two labels that read {str(label)!r}: call one of them otherwise")
            groups[str(label)] = list(value) if isinstance(value, Sequence) else [value]
    else:
        for history in histories if isinstance(histories, Sequence) else [histories]:
            groups.setdefault(history.name, []).append(history)
    empty = next((label for label, repeats in groups.items() if not repeats), None)
    if not groups or empty is not None:
        where = "histories" if empty is None else f"histories[{empty!r}]"
        raise ValueError(f"{where} is empty: give at least one History")
    return groups


def check_repeats(histories: Histories) -> None:
    """Refuses a list in which runs of one name differ in more than the seed: their mean says nothing.

    Raises:
        ValueError: they do, or one of them is there twice.
    """
    if isinstance(histories, Mapping) or not isinstance(histories, Sequence):
        return
    by_name: dict[str, list[repeats.Run]] = {}
    for place, history in enumerate(histories):
        by_name.setdefault(history.name, []).append(repeats.of(history, Path(f"histories[{place}]")))
    for name, runs in by_name.items():
        rows = repeats.rows(runs).options
        if len(rows) == 1:
            continue
        differing = {
            option: dict.fromkeys(of.get(option, "none") for of in rows.values())
            for of in rows.values()
            for option in of
        }
        option, values = next((option, values) for option, values in differing.items() if len(values) > 1)
        why = f"{option} is {' and '.join([*values][:2])}"
        why = {"folder": "equal seeds gave unequal results", "data": "they were made on different data"}.get(
            option, why
        )
        one, other = (repr(label) for label in [*rows][:2])
        raise ValueError(
            f"histories has runs of {name!r} that are no repeats, {why}: give a dict from label to runs, "
            f"e.g. {{{one}: [...], {other}: [...]}}, or {{{name!r}: [...]}} to average them all the same"
        )


def evaluation_names(groups: dict[str, list[History]], evaluation: str | None) -> list[str]:
    """Names of the evaluations that will be drawn, checked to be there."""
    names: dict[str, None] = {}
    for runs in groups.values():
        for run in runs:
            if not len(run.scores(evaluation)):
                raise ValueError(
                    f"the run of {run.name!r} has no evaluations: give simulate an eval_every, or plot one of its "
                    f"metrics ({', '.join(run.metrics) or 'it has none'}) with metric_over_time"
                )
            names[evaluation or str(run.evaluation)] = None
    return list(names)


def key(label: str) -> str:
    """A label as a method's name."""
    return label.lower().replace("-", "_").replace(" ", "_")


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style per label: that of the method it names, solid where its cohorts grow, else the next one of the cycle.

    Before a comma it is a row of a table, whose method counts where no other row has it: "SRPFL, clock=fixed".
    """
    cycle = itertools.cycle(CYCLE)
    styles: dict[str, Style] = {}
    as_written = {row.label: row for row in RECIPES.values() if row.label} | RECIPES  # these come first
    recipes = {key(row.label): row for row in RECIPES.values() if row.label} | RECIPES
    # a label may have commas of its own, "FLANP (FedAvg, criterion)"
    known = {label: [word for word in as_written if f"{label},".startswith(f"{word},")] for label in labels}
    named = {label: max(words, key=len, default=label.partition(",")[0]) for label, words in known.items()}
    rows_of = Counter(named.values())
    for label, name in named.items():
        alone = rows_of[name] == 1 or label == name
        row = as_written.get(name, recipes.get(key(name))) if alone else None
        known = None
        if row is not None and row.color is not None:
            known = Style(row.label or label, row.color, "-" if row.doubling else "--")
        if known is None or known in styles.values():
            linestyle, color = next(cycle)
            known = Style(methods.label(label) if known is None else label, color, linestyle)
        styles[label] = known
    return styles


def labels(
    groups: dict[str, list[History]], evaluation: str | None = None, names: Sequence[str] = (), count: bool = True
) -> dict[str, str]:
    """What the legend says of each group: with the evaluation where lines differ in it, and who diverged."""
    labels: dict[str, str] = {}
    for label, style in styles(groups).items():
        runs = groups[label]
        remarks = [f"{len(runs)} runs"] if count and len(runs) > 1 else []
        if len(names) > 1:
            remarks.append("/".join(dict.fromkeys(evaluation or str(run.evaluation) for run in runs)))
        if diverged := [run.diverged for run in runs if run.diverged is not None]:
            remarks.append(f"diverged in round {diverged[0]}" if len(runs) == 1 else f"{len(diverged)} diverged")
        name = style.label if label in RECIPES else methods.label(label)
        labels[label] = f"{name} ({', '.join(remarks)})" if remarks else name
    return labels


def legend_inside(ax: Axes, handles: Mapping[str, Any], notes: Sequence[str]) -> None:
    """A legend where it covers least of the axes."""
    texts = _wrapped(handles, ax.get_window_extent().width / ax.figure.dpi)
    ax.legend([*handles.values()], texts, title="\n".join(notes) or None, framealpha=0.9, edgecolor="none")


def fits_inside(handles: Iterable[str]) -> bool:
    """Whether a legend with these entries leaves the axes some room."""
    texts = list(handles)
    return len(texts) <= MAX_ENTRIES and max(map(len, texts)) <= MAX_LETTERS


def legend_below(
    owner: Figure | Axes, handles: Mapping[str, Any], width: float, notes: Sequence[str], **place: Any
) -> float:
    """A legend under what is drawn, with as many columns as fit; returns the height that it needs, in inches.

    Args:
        owner: whose legend it is.
        handles: text -> artist; texts that are too long are wrapped.
        width: what there is, in inches.
        notes: what stands above the entries.
        place: where it is, as `legend` takes it.
    """
    texts = _wrapped(handles, width)
    longest = max(len(line) for text in texts for line in text.splitlines())
    fitting = max(1, min(4, int(width / (HANDLE + LETTER * longest))))
    rows = -(-len(texts) // fitting)  # ceiling, so that twins stand above each other
    title = textwrap.fill("; ".join(notes), int(width / LETTER), break_on_hyphens=False)
    columns = [texts[first : first + rows] for first in range(0, len(texts), rows)]
    legend = owner.legend([*handles.values()], texts, ncols=len(columns), title=title or None, frameon=False, **place)
    legend.get_title().set_multialignment("center")
    return ROW * (title.count("\n") + bool(title) + max(len("\n".join(of).splitlines()) for of in columns))


def legend_under(ax: Axes, handles: Mapping[str, Any], notes: Sequence[str]) -> float:
    """`legend_below` of axes, under the name of their x axis."""
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0, -AXIS, ax.figure.dpi_scale_trans)
    width = ax.get_window_extent().width / ax.figure.dpi
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    return legend_below(ax, handles, width, notes, **place)


def _wrapped(texts: Iterable[str], width: float) -> list[str]:
    letters = max(10, int((width - HANDLE) / LETTER))
    return [textwrap.fill(text, letters, break_on_hyphens=False) for text in texts]


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure without pyplot, so nothing global refers to it, which a notebook displays all the same."""
    import matplotlib.figure

    class NotebookFigure(matplotlib.figure.Figure):
        def _repr_png_(self) -> bytes:
            return png(self, self.dpi)

    return NotebookFigure(figsize=size, dpi=110, layout="constrained")


def png(figure: Figure, dpi: float = 150) -> bytes:
    """A figure as the content of a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    return buffer.getvalue()
