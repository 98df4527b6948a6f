"""Shared code of the figures and tables of the FLANP paper: panels, stored runs, speed-ups and command line.

Each run has a folder below --out and is not repeated. Curves are means over seeds on a common axis, with a band
from lowest to highest seed; the strip below a panel has a row for each seed of FLANP and a colour for each stage.

A speed-up is the time of a method over FLANP's, seed by seed. "At the end" is at 1.05 times the lowest value that both
methods reach in every seed; "at most", the paper's "up to", is the largest mean over 40 values from there to the middle
of the way to the start, on a logarithmic scale (at the start itself the ratio is that of two clients' speeds).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.flanp.worlds import (
    CURVES,
    WORLDS,
    World,
    test_accuracy,
)

VALUES, POINTS = 40, 60


class Panel(NamedTuple):
    """One experiment: a world and the methods compared in it."""

    title: str
    world: str  # key of `worlds.WORLDS`
    options: dict[str, Any]
    methods: tuple[str, ...]
    num_rounds: int
    eval_every: int = 1
    seeds: int = 3
    values: tuple[float, ...] = ()  # fixed values at which times are also compared

    def name(self) -> str:
        """Return the name of the folder of its runs."""
        return "_".join([self.world, *(str(value) for value in self.options.values())])


class Runs(NamedTuple):
    """Runs of a panel; histories are by curve, one for each seed, and worlds one for each seed."""

    panel: Panel
    histories: dict[str, list[srp.History]]
    worlds: list[World]


@scripts.reported()
def run_panels(args: argparse.Namespace, panels: Sequence[Panel]) -> list[Runs]:
    """Run these panels as one grid."""
    if args.seeds is not None:
        panels = [panel._replace(seeds=args.seeds) for panel in panels]
    found = []
    variants = {}
    for panel in panels:
        make = WORLDS[panel.world]
        worlds = [
            make(seed, args.data_dir, **panel.options) for seed in range(panel.seeds)
        ]
        names = {}
        for method in panel.methods:
            names[method] = [f"{panel.name()}/{method}/{s}" for s in range(panel.seeds)]
            for seed, (name, world) in enumerate(zip(names[method], worlds, strict=True)):
                variants[name] = CURVES[method].options(
                    world, seed, panel.num_rounds, panel.eval_every
                )
        found.append((panel, names, worlds))
    args.out /= args.scale
    runs = scripts.run_grid(args, variants=variants).histories_by("variant")
    return [
        Runs(panel, {m: [runs[name][0] for name in names[m]] for m in names}, worlds)
        for panel, names, worlds in found
    ]


def trajectory(
    history: srp.History, metric: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rounds, simulated times and values of a run's curve."""
    if metric is None:
        return history.eval_round, history.eval_elapsed(), history.mean_accuracy
    return history.round, history.elapsed(), history.metrics[metric]


def lowest_value(history: srp.History, metric: str | None) -> float:
    """Return the lowest value of a curve; inf if the run diverged."""
    if history.diverged:
        return math.inf
    return float(np.nanmin(trajectory(history, metric)[2]))


def time_ratios(runs: Runs, rival: str, ours: str, value: float) -> np.ndarray:
    """Return the rival's times to a value over FLANP's, seed by seed; nan where both stay above, inf where one does."""
    metric = runs.worlds[0].metric
    theirs, own = (
        np.array([h.time_to(value, metric=metric) for h in runs.histories[name]], float)
        for name in (rival, ours)
    )
    with np.errstate(invalid="ignore"):
        return theirs / np.maximum(own, 1e-12)


def speed_ups(runs: Runs, rival: str, ours: str = "flanp") -> dict[str, Any]:
    """Return the ratios of the rival's time to FLANP's, seed by seed, as the module docstring defines them."""
    metric = runs.worlds[0].metric
    both = [*runs.histories[ours], *runs.histories[rival]]
    end = 1.05 * max(lowest_value(history, metric) for history in both)
    start = min(float(trajectory(history, metric)[2][0]) for history in both)
    if not (math.isfinite(end) and end < start):
        return {"end": curves.rounded(end), "at_end": None, "at_most": None}
    values = np.geomspace(end, math.sqrt(end * start), VALUES)
    means = [time_ratios(runs, rival, ours, value).mean() for value in values]
    best = float(values[int(np.argmax(means))])
    found = {
        "end": end,
        "at_end": time_ratios(runs, rival, ours, end),
        "best": best,
        "at_most": time_ratios(runs, rival, ours, best),
    }
    return curves.rounded(found)


def ratios_at_values(runs: Runs, ours: str) -> dict[str, dict[str, list[float | None]]]:
    """Return the ratios at each of the panel's values, seed by seed; None where either method stays above."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for rival in rivals_in(runs):
        found[rival] = {}
        for value in runs.panel.values:
            ratios = time_ratios(runs, rival, ours, value)
            found[rival][str(value)] = [
                curves.rounded(ratio) if 0 < ratio < math.inf else None
                for ratio in ratios
            ]
    return found


def rivals_in(runs: Runs) -> list[str]:
    """Return the methods of a panel that are not FLANP."""
    return [name for name in runs.panel.methods if name not in FLANP_VARIANTS]


def stage_norms(history: srp.History) -> list[list[float | int | None]]:
    """Return of each stage the number of clients, the threshold of the gradient norm, and the lowest norm reached."""
    norm = history.metrics["global_grad_norm"]
    threshold = history.metrics["grad_norm_threshold"]
    found = []
    for stage in history.stages():
        at = slice(stage.first_round - 1, stage.first_round - 1 + stage.num_rounds)
        norms = curves.rounded([threshold[at][-1], np.nanmin(norm[at])])
        found.append([stage.cohort_size, *norms])
    return found


FLANP_VARIANTS = ("flanp", "gentle", "early", "half")


def resample(runs: Runs, method: str, against: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a common axis of rounds or times, and for every seed the last value at or before each of its points."""
    metric = runs.worlds[0].metric
    tracks = [trajectory(history, metric) for history in runs.histories[method]]
    places = [track[0] if against == "round" else track[1] for track in tracks]
    first = max(max(place[0], place[1] / 2) for place in places)
    last = min(place[-1] for place in places)
    spaced = np.linspace if against == "round" else np.geomspace
    grid = spaced(first, last, POINTS)
    values = [
        track[2][np.searchsorted(place, grid, "right") - 1]
        for track, place in zip(tracks, places, strict=True)
    ]
    return grid, np.array(values, float)


def draw_curves(ax: Any, runs: Runs, against: str) -> None:
    """Draw every method of a panel over rounds or simulated time."""
    for method in runs.panel.methods:
        x, values = resample(runs, method, against)
        curve = CURVES[method]
        values = np.where(np.isfinite(values), values, np.nan)
        curves.draw_trials(
            ax, x, values, curve.color, linestyle=curve.style, label=curve.label
        )
    metric = runs.worlds[0].metric
    ax.set_yscale("log")
    ax.set_ylabel("distance to the minimum" if metric else "training loss")
    if (
        metric is None
    ):  # a few values of one decade, which read better as 0.2 than as 2 * 10^-1
        ax.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
    ax.set_xlabel(
        "communication rounds" if against == "round" else "simulated time (time units)"
    )
    if against == "time":
        ax.set_xscale("log")
    curves.style(ax)


def draw_stages(ax: Any, runs: Runs, against: str) -> None:
    """Draw a row for each seed of FLANP and a bar for each stage, with its number of clients where it fits."""
    for row, history in enumerate(runs.histories["flanp"]):
        stages = history.stages()
        shades = matplotlib.colormaps["Blues"](np.linspace(0.25, 0.85, len(stages)))
        ends = np.array(
            [[s.first_round - 1, s.first_round - 1 + s.num_rounds] for s in stages], float
        )
        if against == "time":
            ends = np.array([[s.begins, s.ends] for s in stages])
        low, high = ax.get_xlim()
        scale = np.log if against == "time" else np.asarray
        for stage, (begin, end), shade in zip(
            stages, np.clip(ends, low, high), shades, strict=True
        ):
            ax.barh(row, end - begin, left=begin, height=0.8, color=shade, linewidth=0)
            if (scale(end) - scale(begin)) / (scale(high) - scale(low)) > 0.07:
                middle = (
                    math.sqrt(begin * end) if against == "time" else (begin + end) / 2
                )
                dark = stage.stage > len(stages) / 2
                ax.text(
                    middle, row, stage.cohort_size, ha="center", va="center", fontsize=6, color="w" if dark else "k",
                    clip_on=True,
                )  # fmt: skip
    ax.set_xlim(low, high)
    ax.set_yticks([])
    ax.set_ylim(-0.6, len(runs.histories["flanp"]) - 0.4)
    ax.set_ylabel("n", rotation=0, va="center")
    ax.spines[["top", "right", "left"]].set_visible(False)


def draw(panel_runs: list[Runs], title: str) -> Figure:
    """Draw a column over time for each panel; a single panel is also drawn over rounds."""
    kinds = ("round", "time") if len(panel_runs) == 1 else ("time",)
    columns = [(runs, against) for runs in panel_runs for against in kinds]
    # rows of the strip are as high as the numbers in them
    strip = max(0.14, 0.06 * max(runs.panel.seeds for runs in panel_runs))
    figure = Figure(figsize=(4.7 * len(columns), 4.2 + 3 * strip), layout="constrained")
    axes = figure.subplots(
        2,
        len(columns),
        squeeze=False,
        sharex="col",
        gridspec_kw={"height_ratios": [1, strip]},
    )
    for (top, bottom), (runs, against) in zip(axes.T, columns, strict=True):
        draw_curves(top, runs, against)
        draw_stages(bottom, runs, against)
        bottom.set_xlabel(top.get_xlabel())
        top.set_xlabel("")
        top.set_title(runs.panel.title, fontsize=10)
    note = "line: mean of the seeds, band: lowest to highest; strip: FLANP's stages, a row for each seed, n clients"
    curves.legend(figure, axes[0], 4, title=note)
    figure.suptitle(title, fontsize=11)
    return figure


def panel_results(runs: Runs) -> dict[str, Any]:
    """Return the entry of a panel in the results file: curves over time, stages, speed-ups, last values."""
    metric = runs.worlds[0].metric
    found: dict[str, Any] = {
        "title": runs.panel.title,
        "rounds": runs.panel.num_rounds,
        "seeds": runs.panel.seeds,
    }
    for method, histories in runs.histories.items():
        x, values = resample(runs, method, "time")
        row: dict[str, Any] = {
            "time": x[::3],
            **{name: of(values, axis=0)[::3] for name, of in _OVER_SEEDS.items()},
            "lowest": [lowest_value(history, metric) for history in histories],
            "last": [trajectory(history, metric)[2][-1] for history in histories],
        }
        row = curves.rounded(row)
        if metric is None:
            pairs = zip(histories, runs.worlds, strict=True)
            row["accuracy"] = curves.rounded([test_accuracy(*pair) for pair in pairs])
        if metric is None and method in FLANP_VARIANTS:
            row["norms"] = [stage_norms(history) for history in histories]
        if method in ("heuristic", "tuned", "whole", *FLANP_VARIANTS):
            row["stages"] = [
                [
                    [s.cohort_size, s.num_rounds, curves.rounded(s.begins), s.completed]
                    for s in h.stages()
                ]
                for h in histories
            ]
        found[method] = row
    found["speed_up"] = {
        name: speed_ups(runs, name) for name in runs.panel.methods if name != "flanp"
    }
    for ours in [name for name in FLANP_VARIANTS[1:] if name in runs.histories]:
        found[f"speed_up_{ours}"] = {
            name: speed_ups(runs, name, ours) for name in rivals_in(runs)
        }
    if runs.panel.values:
        found["at"] = {
            ours: ratios_at_values(runs, ours)
            for ours in FLANP_VARIANTS
            if ours in runs.histories
        }
    return found


_OVER_SEEDS = {"mean": np.mean, "least": np.min, "most": np.max}


def parser(
    doc: str | None,
    made_by: Callable[..., argparse.ArgumentParser] = scripts.grid_parser,
    **own: Any,
) -> argparse.ArgumentParser:
    """Return a parser with the options of every script."""
    scales = ("smoke", "cpu", "full")
    return made_by(doc, scales, "runs/flanp", "data-dir", "seeds", **own)


def main(name: str, title: str, panels: Mapping[str, list[Panel]]) -> None:
    """Run the panels of a figure at a scale; write its picture and its results."""
    args = parser(f"{name} of the FLANP paper: {title}.").parse_args()
    runs = run_panels(args, panels[args.scale])
    found = [panel_results(of_panel) for of_panel in runs]
    name = f"{name}_full" if args.scale == "full" else name
    curves.save(args, name, {"results": found}, draw(runs, title))
