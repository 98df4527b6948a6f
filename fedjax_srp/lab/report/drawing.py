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
from fedjax_srp.parts.checks import short
from fedjax_srp.results.figure import X, plain
from fedjax_srp.results.history import History

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


# For methods without their own colour, from the palettes of Tol and of Okabe and Ito for the colour-blind.
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
SINGLE = "thin lines: single runs"
HELD = "thinner: some runs have ended and keep their last value"
TIME_LABEL = "simulated time (time units)"
MAX_MARKED = 40  # a line with more evaluations has no dots
MAX_ENTRIES, MAX_LETTERS = (
    5,
    35,
)  # of a legend and of its longest entry; larger legends are below the axes
LETTER, HANDLE = (
    0.067,
    0.75,
)  # mean width in a legend of a letter and of a line sample with its margins, in inches
ROW, AXIS = (
    0.2,
    0.5,
)  # height of a line of a legend and of an axis with its label, in inches


def accuracy_curve(
    communication: float, evaluation: str | None, x: X = "time"
) -> Callable[[History], Curve]:
    """Return a function from a history to its curve of mean scores, over simulated time or rounds."""
    if x == "rounds":
        return lambda history: Curve(
            history.eval_round, history.mean_scores(evaluation), history.round
        )
    return lambda history: Curve(
        history.eval_elapsed(communication),
        history.mean_scores(evaluation),
        history.elapsed(communication),
    )


def draw(
    ax: Axes,
    groups: Mapping[str, Sequence[History]],
    curve: Callable[[History], Curve],
    styles: Mapping[str, Style],
    labels: Mapping[str, str],
    spread: Spread = "range",
) -> tuple[dict[str, Any], list[str]]:
    """Draw one line per group; return legend label -> artist, and notes that explain the lines.

    Repeats are drawn as their mean with a band, or as a thin line each if `spread` says so or they do not overlap.
    """
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    counts, has_stages, is_held, is_single = set(), False, False, False
    for label, runs in groups.items():
        text, curves = labels[label], [curve(run) for run in runs]
        look: dict[str, Any] = {
            "color": styles[label].color,
            "linestyle": styles[label].linestyle,
        }
        handles[text] = Line2D([], [], **look)  # no dots, which would hide the dashes
        if len(runs) > 1 and (spread == "seeds" or do_not_overlap(curves)):
            is_single = True
            handles[text].set_linewidth(THIN["linewidth"])
            for place, (x, y, _) in enumerate(curves):
                ax.plot(x, y, label="_single" if place else text, **look, **THIN)
        elif len(runs) > 1:
            found = band(curves, spread)
            counts.add(len(runs))
            ax.fill_between(
                found.x,
                found.low,
                found.high,
                color=look["color"],
                alpha=0.14,
                linewidth=0,
            )
            for running, place in pieces(found.running):
                is_held |= running < len(runs)
                name = text if place.start == 0 else "_held"
                width = WIDTH * (1 + 2 * running / len(runs)) / 3
                ax.plot(
                    found.x[place], found.mean[place], linewidth=width, label=name, **look
                )
        else:
            (x, y, ends), (run,) = curves[0], runs
            ax.plot(
                x,
                y,
                marker="." if len(x) <= MAX_MARKED else "",
                markersize=5,
                label=text,
                **look,
            )
            starts = ends[np.flatnonzero(np.diff(run.stage))]
            starts = starts[(starts >= x[0]) & (starts <= x[-1])]
            has_stages |= len(starts) > 0
            mark = {
                "linestyle": "",
                "marker": "o",
                "markersize": 6,
                "mfc": "white",
                "mec": look["color"],
                "mew": 1.4,
            }
            ax.plot(starts, np.interp(starts, x, y), label="_stages", **mark)
    if has_stages:
        handles["a stage begins"] = Line2D(
            [], [], linestyle="", marker="o", markersize=6, mfc="white", mec="#555555"
        )
    ax.set_xlim(left=0)
    ax.grid(visible=True)
    ax.set_axisbelow(True)
    notes = (
        [
            f"line: mean of {'/'.join(map(str, sorted(counts)))} runs, band: {BANDS[spread]}"
        ]
        if counts
        else []
    )
    return handles, notes + [HELD] * is_held + [SINGLE] * is_single


def do_not_overlap(curves: Sequence[Curve]) -> bool:
    """Return True if some curves begin after others have ended, so that they have no mean."""
    return len(curves) > 1 and bool(
        max(curve.x[0] for curve in curves) >= min(curve.x[-1] for curve in curves)
    )


def band(curves: Sequence[Curve], spread: Spread = "range") -> Band:
    """Interpolate curves at the points of all of them and average, from the last beginning to the last end.

    A curve that has ended keeps its last value, so the mean ends with the mean of the last values.
    """
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    x = x[x >= max(curve.x[0] for curve in curves)]
    values = np.array(
        [np.interp(x, curve.x, curve.y) for curve in curves]
    )  # nan spreads to its neighbours
    running = np.sum([x <= curve.x[-1] for curve in curves], axis=0)
    mean = values.mean(axis=0)
    if spread == "range":
        return Band(x, values.min(axis=0), mean, values.max(axis=0), running)
    deviation = values.std(axis=0, ddof=1)
    return Band(x, mean - deviation, mean, mean + deviation, running)


def pieces(running: np.ndarray) -> list[tuple[int, slice]]:
    """Split a band where a curve ends: (number of running curves, slice), each slice joined to the one before."""
    ends = [*(np.flatnonzero(np.diff(running)) + 1).tolist(), len(running)]
    return [
        (int(running[end - 1]), slice(max(0, begin - 1), end))
        for begin, end in itertools.pairwise([0, *ends])
    ]


def log_ticks(ax: Axes) -> None:
    """Label a logarithmic time axis with plain numbers, as many as fit."""
    from matplotlib import ticker

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(
        ticker.LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,))
    )
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


def _listed(where: str, given: Any) -> list[History]:
    """Return one or several histories as a list; ValueError if there is none, or something else."""
    histories = list(given) if isinstance(given, Sequence | Mapping) else [given]
    if not histories:
        raise ValueError(f"{where} is empty: give at least one History")
    for place, history in enumerate(histories):
        if not isinstance(history, History):
            raise ValueError(
                f"{where}[{place}]={short(history)} is no History; srp.History.load(folder) reads a run folder"
            )
    return histories


def checked_groups(histories: Histories) -> dict[str, list[History]]:
    """Return `groups`, after checking that runs of one name in a list differ only in the seed."""
    found = groups(histories)
    if isinstance(histories, Mapping):
        return found
    runs = [
        repeats.of(run, Path(f"histories[{place}]"))
        for place, run in enumerate(_listed("histories", histories))
    ]
    for name in found:
        one, *others = repeats.rows(
            [run for run in runs if run.history.name == name]
        ).runs
        if others:
            raise ValueError(
                f"histories has runs of {name!r} that are not repeats: give a dict from label to runs, e.g. "
                f"{{{one!r}: [...], {others[0]!r}: [...]}}, or {{{name!r}: [...]}} to average them all the same"
            )
    return found


def evaluation_names(
    groups: Mapping[str, Sequence[History]], evaluation: str | None
) -> list[str]:
    """Return the names of the evaluations to draw; ValueError if a run lacks its evaluation."""
    names: dict[str, None] = {}
    for run in itertools.chain.from_iterable(groups.values()):
        if not len(run.scores(evaluation)):
            raise ValueError(
                f"the run of {run.name!r} has no evaluations: give simulate an eval_every, or plot one of its "
                f"metrics ({', '.join(run.metrics) or 'it has none'}) with metric_over_time"
            )
        names[evaluation or str(run.evaluation)] = None
    return list(names)


def score_label(groups: Mapping[str, Sequence[History]], names: Sequence[str]) -> str:
    """Return the label of an axis of scores: data, kind of score, and the evaluation if it is the same for all."""
    runs = [run for repeats in groups.values() for run in repeats]
    judged, score = (
        "/".join(dict.fromkeys(getattr(run, name) for run in runs))
        for name in ("judged_on", "score_name")
    )
    return plain(
        f"mean {judged} {score}" + (f"\n({names[0]})" if len(names) == 1 else "")
    )


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return a style per label: that of its method, solid for growing cohorts, else the next of the cycle.

    Next to methods with their own style, the cycle uses solid lines last, since solid means growing cohorts. For the
    name of a table's row, "SRPFL, clock=fixed", the method before the comma decides; if several rows have this method,
    each gets a colour of the cycle, solid if the method doubles its cohorts.
    """
    known = {
        recipe.label: recipe for recipe in RECIPES.values() if recipe.label
    } | RECIPES
    # the label of a method may contain commas, "FLANP (FedAvg, criterion)"
    prefixes = {
        label: [name for name in known if f"{label},".startswith(f"{name},")]
        for label in labels
    }
    names = {
        label: max(found, key=len, default=label.partition(",")[0])
        for label, found in prefixes.items()
    }
    num_rows = Counter(names.values())
    recipes = {
        label: known.get(name)
        or RECIPES.get(name.lower().replace("-", "_").replace(" ", "_"))
        for label, name in names.items()
    }
    colored = {
        label: recipe
        for label, recipe in recipes.items()
        if recipe is not None and recipe.color is not None
    }
    own: dict[str, Style] = {}
    for label, recipe in colored.items():
        style = Style(str(recipe.color), "-" if recipe.doubling else "--")
        if (
            num_rows[names[label]] == 1 or label == names[label]
        ) and style not in own.values():
            own[label] = style
    looks = (
        (*CYCLE[len(CYCLE_COLORS) :], *CYCLE[: len(CYCLE_COLORS)]) if colored else CYCLE
    )
    cycle, used = itertools.cycle(looks), {*own.values()}
    styles: dict[str, Style] = {}
    for label in names:
        fits = (
            look
            for look in looks
            if label not in colored or (look.linestyle == "-") == colored[label].doubling
        )
        styles[label] = (
            own.get(label)
            or next((look for look in fits if look not in used), None)
            or next(cycle)
        )
        used.add(styles[label])
    return styles


def labels(
    groups: Mapping[str, Sequence[History]],
    evaluation: str | None = None,
    names: Sequence[str] = (),
    count: bool = True,
) -> dict[str, str]:
    """Return the legend text of each group: number of runs, the evaluation if lines differ in it, and divergence."""
    labels: dict[str, str] = {}
    shown = {label: methods.label(label) for label in groups}
    num_shown = Counter(shown.values())
    for label, name in shown.items():
        runs = groups[label]
        remarks = [f"{len(runs)} runs"] if count and len(runs) > 1 else []
        if len(names) > 1:
            remarks.append(
                "/".join(dict.fromkeys(evaluation or str(run.evaluation) for run in runs))
            )
        if diverged := [run.diverged for run in runs if run.diverged is not None]:
            remarks.append(
                f"diverged in round {diverged[0]}"
                if len(runs) == 1
                else f"{len(diverged)} diverged"
            )
        name = label if num_shown[name] > 1 else name  # "fedavg" beside "FedAvg"
        labels[label] = plain(f"{name} ({', '.join(remarks)})" if remarks else name)
    return labels


def legend(ax: Axes, handles: Mapping[str, Any], notes: Sequence[str]) -> float:
    """Add a legend inside the axes, or below them if it is large; return the height needed below, in inches."""
    from matplotlib.transforms import ScaledTranslation

    width = ax.get_window_extent().width / ax.figure.dpi
    is_small = len(handles) <= MAX_ENTRIES and max(map(len, handles)) <= MAX_LETTERS
    if (
        is_small or ax.figure.get_layout_engine() is None
    ):  # a layout engine would make room below
        title = "\n".join(_wrapped(notes, width))
        ax.legend(
            [*handles.values()],
            _wrapped(handles, width),
            title=title or None,
            framealpha=0.9,
            edgecolor="none",
        )
        return 0.0
    below = ax.transAxes + ScaledTranslation(0, -AXIS, ax.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    return legend_below(ax, handles, width, notes, **place)


def legend_below(
    owner: Figure | Axes,
    handles: Mapping[str, Any],
    width: float,
    notes: Sequence[str],
    **place: Any,
) -> float:
    """Add a legend below, with as many columns as fit; return the height that it needs, in inches.

    Args:
        owner: figure or axes of the legend.
        handles: text -> artist; long texts are wrapped.
        width: of the owner, in inches.
        notes: lines above the entries.
        place: keyword arguments of matplotlib's `legend`.
    """
    texts = _wrapped(handles, width)
    longest = max((len(line) for text in texts for line in text.splitlines()), default=0)
    fitting = max(1, min(4, int(width / (HANDLE + LETTER * longest))))
    rows = -(-len(texts) // fitting)  # rounded up, so that twins are above each other
    title = textwrap.fill("; ".join(notes), int(width / LETTER), break_on_hyphens=False)
    columns = [texts[first : first + rows] for first in range(0, len(texts), rows)]
    legend = owner.legend(
        [*handles.values()],
        texts,
        ncols=len(columns),
        title=title or None,
        frameon=False,
        **place,
    )
    legend.get_title().set_multialignment("center")
    return ROW * (
        title.count("\n")
        + bool(title)
        + max(len("\n".join(of).splitlines()) for of in columns)
    )


def _wrapped(texts: Iterable[str], width: float) -> list[str]:
    letters = max(10, int((width - HANDLE) / LETTER))
    return [textwrap.fill(text, letters, break_on_hyphens=False) for text in texts]
