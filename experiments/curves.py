"""Curves with bands over trials, pictures and files of results."""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from experiments import scripts
from fedjax_srp.results import atomic

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, GREY = "#E69F00", "#56B4E9", "#666666"
BAND = "line: mean of the trials, band: lowest to highest trial"
MAX_LETTERS = 100  # of a list that is printed
MAX_POINTS = 40  # of a curve, in figures and in results


def panels(
    columns: int, width: float = 4.4, height: float = 3.8, rows: int = 1, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Create a figure without pyplot, and its axes: (columns,), or (rows, columns) for several rows."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        style(ax)
    return figure, axes if rows > 1 else axes[0]


def style(ax) -> None:
    """Draw a light grid behind the curves, and no frame above and on the right."""
    ax.grid(color="#DDDDDD", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def draw_line(ax, x, trials, label: str, color: str, **style: Any) -> dict[str, Any]:
    """Draw the mean of (trials, points) values with a band from lowest to highest; return the summary drawn."""
    rows = summary(x, trials)
    draw_summary(ax, rows, label, color, **style)
    return rows


def summary(x, trials) -> dict[str, Any]:
    """Return mean, lowest and highest of (trials, points) values at no more than `MAX_POINTS` of the points x."""
    kept = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
    shown = {"x": np.asarray(x)[kept], **spread(np.asarray(trials, float)[:, kept])}
    return rounded(shown)


def spread(trials, axis: int | None = 0, middle: str = "mean") -> dict[str, Any]:
    """Return mean (or `middle`, a function of NumPy), lowest and highest of trials; axis=None: of all values."""
    functions = {middle: getattr(np, middle), "lowest": np.min, "highest": np.max}
    return {name: of(trials, axis=axis) for name, of in functions.items()}


def draw_summary(
    ax, rows: Mapping[str, Any], label: str, color: str, **style: Any
) -> None:
    """Draw the result of `summary`."""
    x, *lines = (
        np.asarray(rows[name], float) for name in ("x", "mean", "lowest", "highest")
    )
    draw_band(ax, x, lines, color, label=label, markersize=4, **style)


def draw_trials(ax, x, trials: np.ndarray, color: str, **style: Any) -> None:
    """Draw the mean of (trials, points) values with a band from lowest to highest."""
    draw_band(ax, x, spread(trials).values(), color, **style)


def draw_band(
    ax, x, lines: Iterable[Any], color: str, alpha: float = 0.15, **style: Any
) -> None:
    """Draw a line in a band; `lines` are the line and the ends of the band."""
    middle, low, high = lines
    ax.plot(x, middle, color=color, **{"linewidth": 1.8, **style})
    ax.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)


def ticks_at(ax, values: Iterable[float]) -> None:
    """Mark these values alone on the axis x."""
    shown = list(values)
    ax.set_xticks(shown, [f"{value:,}" for value in shown])
    ax.set_xticks([], minor=True)


def rounded(value: Any) -> Any:
    """Round numbers to four digits for JSON, also in mappings and sequences; inf, nan and bounds become strings."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [rounded(part) for part in value]
    if not math.isfinite(value):
        return str(float(value))
    text = f"{value:.4g}"
    is_bound = getattr(value, "is_bound", False)  # "≤ 20.13", of a time to a target
    return text if is_bound else float(text)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return name -> the values of all rows."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def legend(figure: Figure, axes, columns: int, title: str | None = BAND) -> None:
    """Draw one legend below all panels, which explains the band and has every label of `axes` once."""
    found: dict[str, Any] = {}
    for ax in np.ravel(axes):
        handles, labels = ax.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=columns, title=title, title_fontsize=8,
        frameon=False,
    )  # fmt: skip


def save_picture(figure: Figure, path: Path, dpi: int = 90) -> None:
    """Write a PNG with a palette of 128 colours, a third as large as one with all colours.

    The palette covers rare colours too, such as that of a line which only the legend shows.
    """
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi)
    full = Image.open(content).convert("RGB")
    full.quantize(128, Image.Quantize.MAXCOVERAGE, kmeans=1).save(path, optimize=True)


def print_results(found: Any, name: str = "") -> None:
    """Print results a line each, and of long lists the last entry."""
    entries: Any = ()
    if isinstance(found, Mapping):
        entries = found.items()
    elif isinstance(found, list) and any(isinstance(each, Mapping) for each in found):
        entries = enumerate(found)
    for word, each in entries:
        print_results(each, f"{name}{word}: ")
    if not entries:
        text = str(found)
        print(name + (text if len(text) <= MAX_LETTERS else f"... {found[-1]}"))


def stored(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Load `name.json` of --results, to draw it again."""
    file = scripts.results_folder(args) / f"{name}.json"
    return json.loads(file.read_text("utf-8"))


def save(
    args: argparse.Namespace,
    name: str,
    results: Mapping[str, Any],
    figure: Figure | None = None,
) -> None:
    """Write and print `name`.json in --out, and write `name`.png if there is a figure."""
    folder = scripts.results_folder(args)
    known = {what: vars(args)[what] for what in ("scale", "seed") if what in args}
    text = json.dumps({**known, **results}, indent=1, allow_nan=False) + "\n"
    files = {folder / f"{name}.json": lambda path: path.write_text(text)}
    if figure is not None:
        files[folder / f"{name}.png"] = lambda path: save_picture(figure, path)
    atomic.replace(files)
    print_results(results)
    print(f"wrote {' and '.join(map(str, files))}")
