"""Drawing of curves: styles, bands over repeats, labels, legends, figures without pyplot."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedjax_srp import methods
from fedjax_srp.lab.report import repeats
from fedjax_srp.methods import RECIPES
from fedjax_srp.parts.checks import printable, short
from fedjax_srp.results.figure import X, plain
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import Of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histories = History | Sequence[History] | Mapping[Any, History | Sequence[History]]
Spread = Literal["range", "std", "seeds"]
BANDS: dict[str, str] = {"range": "lowest to highest", "std": "± standard deviation"}


class Style(NamedTuple):
    """Look of a method."""

    color: str
    linestyle: Literal["-", "--", ":"]


class Curve(NamedTuple):
    """Line of one history."""

    x: np.ndarray
    y: np.ndarray
    ends: np.ndarray  # x at the end of every round


class Band(NamedTuple):
    """Mean of the curves of repeats, with its lower and upper bound."""

    x: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    running: np.ndarray  # number of curves that reach x


# For methods without their own colour, from the palettes of Tol and of Okabe and Ito for the
# colour-blind.
CYCLE_COLORS = ("#E69F00", "#56B4E9", "#882255", "#117733", "#999933", "#332288")
LINESTYLES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
CYCLE = tuple(
    Style(color, linestyle) for linestyle in LINESTYLES for color in CYCLE_COLORS
)
WIDTH = 1.8
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
    "lines.linewidth": WIDTH,
}
THIN = {"linewidth": 0.9, "marker": ".", "markersize": 4}
STAGE_MARK: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 6,
    "mfc": "white",
}
SINGLE = "thin lines: single runs"
HELD = "thinner: some runs have ended and keep their last value"
TIME_LABEL = "simulated time (time units)"
MAX_MARKED = 40  # a line with more evaluations has no dots
# of a legend and of its longest entry; larger legends are below the axes
MAX_ENTRIES = 5
MAX_LETTERS = 35
# mean width in a legend of a letter and of a line sample with its margins, in inches
LETTER = 0.067
HANDLE = 0.75
ROW = 0.2  # height of a line of a legend, in inches


def accuracy_curve(
    communication: float, evaluation: str | None, x: X = "time", of: Of = "mean"
) -> Callable[[History], Curve]:
    """Return a function from a history to the curve of a group's mean scores, over time or rounds."""

    def curve(history: History) -> Curve:
        scores = history.group_scores(of, evaluation)
        if x == "rounds":
            return Curve(history.eval_round, scores, history.round)
        ends = history.elapsed(communication)
        return Curve(history.eval_elapsed(communication), scores, ends)

    return curve


def draw(
    ax: Axes,
    groups: Mapping[str, Sequence[History]],
    curve: Callable[[History], Curve],
    styles: Mapping[str, Style],
    labels: Mapping[str, str],
    spread: Spread = "range",
) -> tuple[dict[str, Any], list[str]]:
    """Draw one line per group; return legend label -> artist, and notes that explain the lines.

    Repeats are drawn as their mean with a band, or as a thin line each if `spread` says so or they
    do not overlap.
    """
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    counts: set[int] = set()  # numbers of runs behind the bands
    has_stages = False
    is_held = False
    is_single = False
    for label, runs in groups.items():
        text = labels[label]
        curves = [curve(run) for run in runs]
        look: dict[str, Any] = {
            "color": styles[label].color,
            "linestyle": styles[label].linestyle,
        }
        handles[text] = Line2D([], [], **look)  # no dots, which would hide the dashes
        if len(runs) == 1:
            has_stages |= _draw_run(ax, runs[0], curves[0], text, look)
        elif spread == "seeds" or do_not_overlap(curves):
            is_single = True
            handles[text].set_linewidth(THIN["linewidth"])
            for place, (x, y, _) in enumerate(curves):
                ax.plot(x, y, label="_single" if place else text, **look, **THIN)
        else:
            counts.add(len(runs))
            is_held |= _draw_band(ax, band(curves, spread), len(runs), text, look)
    if has_stages:
        handles["a stage begins"] = Line2D([], [], mec="#555555", **STAGE_MARK)
    ax.set_xlim(left=0)
    ax.grid(visible=True)
    ax.set_axisbelow(True)
    notes = []
    if counts:
        numbers = "/".join(map(str, sorted(counts)))
        notes.append(f"line: mean of {numbers} runs, band: {BANDS[spread]}")
    if is_held:
        notes.append(HELD)
    if is_single:
        notes.append(SINGLE)
    return handles, notes


def _draw_run(
    ax: Axes, run: History, curve: Curve, text: str, look: dict[str, Any]
) -> bool:
    """Draw one run; return True if a stage begins within it."""
    x, y, ends = curve
    marker = "." if len(x) <= MAX_MARKED else ""
    ax.plot(x, y, marker=marker, markersize=5, label=text, **look)
    starts = ends[np.flatnonzero(np.diff(run.stage))]
    starts = starts[(starts >= x[0]) & (starts <= x[-1])]
    mark = {"mec": look["color"], "mew": 1.4, **STAGE_MARK}
    ax.plot(starts, np.interp(starts, x, y), label="_stages", **mark)
    return len(starts) > 0


def _draw_band(
    ax: Axes, band: Band, num_runs: int, text: str, look: dict[str, Any]
) -> bool:
    """Draw the mean of repeats with its band; return True if some of them end before others."""
    ax.fill_between(
        band.x, band.low, band.high, color=look["color"], alpha=0.14, linewidth=0
    )
    for running, place in pieces(band.running):
        name = text if place.start == 0 else "_held"
        width = WIDTH * (1 + 2 * running / num_runs) / 3
        ax.plot(band.x[place], band.mean[place], linewidth=width, label=name, **look)
    return bool((band.running < num_runs).any())


def do_not_overlap(curves: Sequence[Curve]) -> bool:
    """Return True if some curves begin after others have ended, so that they have no mean."""
    if len(curves) < 2:
        return False
    last_begin = max(curve.x[0] for curve in curves)
    first_end = min(curve.x[-1] for curve in curves)
    return bool(last_begin >= first_end)


def band(curves: Sequence[Curve], spread: Spread = "range") -> Band:
    """Average curves, interpolated at the points of all of them from the last beginning on.

    A curve that has ended keeps its last value, so the mean ends with the mean of the last values.
    """
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    x = x[x >= max(curve.x[0] for curve in curves)]
    # nan spreads to its neighbours
    values = np.array([np.interp(x, curve.x, curve.y) for curve in curves])
    ends = np.array([curve.x[-1] for curve in curves])
    running = (x <= ends[:, None]).sum(axis=0)
    mean = values.mean(axis=0)
    if spread == "range":
        return Band(x, values.min(axis=0), mean, values.max(axis=0), running)
    deviation = values.std(axis=0, ddof=1)
    return Band(x, mean - deviation, mean, mean + deviation, running)


def pieces(running: np.ndarray) -> list[tuple[int, slice]]:
    """Split a band where a curve ends: (number of running curves, slice).

    Each slice begins with the last point of the one before.
    """
    begin = 0
    parts = []
    for end in [*(np.flatnonzero(np.diff(running)) + 1).tolist(), len(running)]:
        parts.append((int(running[end - 1]), slice(max(0, begin - 1), end)))
        begin = end
    return parts


def log_ticks(ax: Axes) -> None:
    """Label a logarithmic time axis with plain numbers, as many as fit."""
    from matplotlib import ticker

    low, high = ax.get_xlim()
    multiples = (1, 2, 5) if high < 100 * low else (1,)
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=multiples))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


def groups(histories: Histories) -> dict[str, list[History]]:
    """Return label -> repeats, in the order given; labels are converted to text."""
    groups: dict[str, list[History]] = {}
    if isinstance(histories, Mapping) and histories:
        for label, value in histories.items():
            if str(label) in groups:
                raise ValueError(
                    f"histories has two labels that read {str(label)!r}: rename one of them"
                )
            groups[str(label)] = _listed(f"histories[{label!r}]", value)
    else:
        for history in _listed("histories", histories):
            groups.setdefault(history.name, []).append(history)
    return groups


def _listed(where: str, value: Any) -> list[History]:
    """Return one or several histories as a list; ValueError if there is none, or something else."""
    histories = list(value) if isinstance(value, Sequence | Mapping) else [value]
    if not histories:
        raise ValueError(f"{where} is empty: give at least one History")
    for place, history in enumerate(histories):
        if not isinstance(history, History):
            raise ValueError(
                f"{where}[{place}]={short(history)} is no History; "
                "srp.History.load(folder) reads a run folder"
            )
    return histories


def checked_groups(histories: Histories) -> dict[str, list[History]]:
    """Return `groups`, after checking that runs of one name in a list differ only in the seed."""
    by_label = groups(histories)
    if isinstance(histories, Mapping):
        return by_label
    runs_of: dict[str, list[repeats.Run]] = {}
    for place, history in enumerate(_listed("histories", histories)):
        run = repeats.of(history, Path(f"histories[{place}]"))
        runs_of.setdefault(history.name, []).append(run)
    for name, runs in runs_of.items():
        one, *others = repeats.rows(runs).runs
        if others:
            raise ValueError(
                f"histories has runs of {name!r} that are not repeats: give a dict from label to "
                f"runs, e.g. {{{one!r}: [...], {others[0]!r}: [...]}}, or {{{name!r}: [...]}} to "
                "average them all the same"
            )
    return by_label


def evaluation_names(
    groups: Mapping[str, Sequence[History]], evaluation: str | None
) -> list[str]:
    """Return the names of the evaluations to draw; ValueError if a run lacks its evaluation."""
    names: dict[str, None] = {}
    for run in itertools.chain.from_iterable(groups.values()):
        if not len(run.scores(evaluation)):
            metrics = printable(", ".join(run.metrics)) or "it has none"
            raise ValueError(
                f"the run of {run.name!r} has no evaluations: give simulate an eval_every, or plot "
                f"one of its metrics ({metrics}) with metric_over_time"
            )
        names[evaluation or str(run.evaluation)] = None
    return list(names)


def score_label(
    groups: Mapping[str, Sequence[History]], names: Sequence[str], of: Of = "mean"
) -> str:
    """Return the label of an axis of scores: data, score, and the evaluation if all have it."""
    runs = [run for repeats in groups.values() for run in repeats]
    judged = "/".join(dict.fromkeys(run.judged_on for run in runs))
    score = "/".join(dict.fromkeys(run.score_name for run in runs))
    label = f"mean {judged} {score}"
    if of != "mean":
        label = f"{judged} {score} of the {of.replace('_', ' ')}"
    if len(names) == 1:
        label += f"\n({names[0]})"
    return plain(label)


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return a style per label: that of its method, or else the next of the cycle.

    Methods with growing cohorts have solid lines, and where there are any, others are dashed, and
    the cycle uses solid lines last, since solid means growing cohorts then. For the name of a table's row, "SRPFL,
    clock=fixed", the method before the comma decides; if several rows have this method, each gets a
    colour of the cycle, solid if the method doubles its cohorts.
    """
    recipe_of: dict[str, Any] = {
        r.label: r for r in RECIPES.values() if r.label
    } | RECIPES
    names = {label: _method_name(label, recipe_of) for label in labels}
    num_rows = Counter(names.values())
    colored: dict[str, Any] = {}  # label -> recipe of a method with a colour
    for label, name in names.items():
        key = name.lower().replace("-", "_").replace(" ", "_")
        recipe = recipe_of.get(name) or RECIPES.get(key)
        if recipe is not None and recipe.color is not None:
            colored[label] = recipe
    has_doubling = any(recipe.doubling for recipe in colored.values())
    method_styles: dict[str, Style] = {}
    for label, recipe in colored.items():
        name = names[label]
        is_dashed = has_doubling and not recipe.doubling
        style = Style(recipe.color, "--" if is_dashed else "-")
        is_first = num_rows[name] == 1 or label == name
        if is_first and style not in method_styles.values():
            method_styles[label] = style
    looks = CYCLE
    if has_doubling:  # solid lines last
        looks = (*CYCLE[len(CYCLE_COLORS) :], *CYCLE[: len(CYCLE_COLORS)])
    cycle = itertools.cycle(looks)
    used = set(method_styles.values())
    styles: dict[str, Style] = {}
    for label in names:
        unused = [look for look in looks if look not in used]
        if label in colored and has_doubling:
            is_solid = colored[label].doubling
            unused = [look for look in unused if (look.linestyle == "-") == is_solid]
        if label in method_styles:
            style = method_styles[label]
        elif unused:
            style = unused[0]
        else:
            style = next(cycle)
        styles[label] = style
        used.add(style)
    return styles


def _method_name(label: str, known: Iterable[str]) -> str:
    """Return the longest known name before a comma of a label, or else the text before the first.

    The name of a method may contain commas, as "FLANP (FedAvg, criterion)" does.
    """
    prefixes = [name for name in known if f"{label},".startswith(f"{name},")]
    return max(prefixes, key=len, default=label.partition(",")[0])


def labels(
    groups: Mapping[str, Sequence[History]],
    evaluation: str | None = None,
    names: Sequence[str] = (),
    count: bool = True,
) -> dict[str, str]:
    """Return the legend text of each group, with remarks in brackets.

    These are the number of runs, the evaluation if lines differ in it, and divergence.
    """
    labels: dict[str, str] = {}
    num_labels = Counter(methods.label(label) for label in groups)
    for label, runs in groups.items():
        remarks = []
        if count and len(runs) > 1:
            remarks.append(f"{len(runs)} runs")
        if len(names) > 1:
            evaluations = dict.fromkeys(evaluation or str(run.evaluation) for run in runs)
            remarks.append("/".join(evaluations))
        diverged = [run.diverged for run in runs if run.diverged is not None]
        if diverged and len(runs) == 1:
            remarks.append(f"diverged in round {diverged[0]}")
        elif diverged:
            remarks.append(f"{len(diverged)} diverged")
        text = methods.label(label)
        if num_labels[text] > 1:  # "fedavg" beside "FedAvg"
            text = label
        if remarks:
            text += f" ({', '.join(remarks)})"
        labels[label] = plain(text)
    return labels


def is_small(handles: Mapping[str, Any]) -> bool:
    """Return True if a legend of these entries fits into a panel."""
    return len(handles) <= MAX_ENTRIES and max(map(len, handles)) <= MAX_LETTERS


def legend_within(ax: Axes, handles: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Add a legend in the axes."""
    width = ax.get_window_extent().width / ax.figure.dpi
    ax.legend(
        list(handles.values()),
        _wrapped(handles, width),
        title="\n".join(_wrapped(notes, width)) or None,
        framealpha=0.9,
        edgecolor="none",
    )


def legend_below(
    figure: Figure,
    handles: Mapping[str, Any],
    labels: Mapping[str, str],
    notes: Iterable[str],
    height: float,
) -> None:
    """Add a legend below the panels, with as many columns as fit.

    Args:
        figure: it grows, so that the panels keep their height.
        handles: text -> artist; long texts are wrapped.
        labels: of the groups, see `labels`: these entries are the first.
        notes: lines above the entries.
        height: of the figure without the legend, in inches.
    """
    width = figure.get_figwidth()
    order = dict.fromkeys([*labels.values(), *handles])
    drawn = [text for text in order if text in handles]
    texts = _wrapped(drawn, width)
    longest = max((len(line) for text in texts for line in text.splitlines()), default=0)
    fitting = max(1, min(4, int(width / (HANDLE + LETTER * longest))))
    rows = -(-len(texts) // fitting)  # rounded up, so that twins are above each other
    columns = [texts[first : first + rows] for first in range(0, len(texts), rows)]
    title = textwrap.fill("; ".join(notes), int(width / LETTER), break_on_hyphens=False)
    legend = figure.legend(
        [handles[text] for text in drawn],
        texts,
        loc="outside lower center",
        ncols=len(columns),
        title=title or None,
        frameon=False,
    )
    legend.get_title().set_multialignment("center")
    num_lines = max(len("\n".join(column).splitlines()) for column in columns)
    num_lines += len(title.splitlines())
    figure.set_figheight(max(figure.get_figheight(), height + ROW * num_lines))


def _wrapped(texts: Iterable[str], width: float) -> list[str]:
    letters = max(10, int((width - HANDLE) / LETTER))
    return [textwrap.fill(text, letters, break_on_hyphens=False) for text in texts]
