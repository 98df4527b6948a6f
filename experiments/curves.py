"""Curves with bands over trials, pictures and files of results."""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fedjax_srp.results import atomic

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, GREY = "#E69F00", "#56B4E9", "#666666"
BAND = "line: mean of the trials, band: lowest to highest trial"
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
    x, trials = np.asarray(x), np.asarray(trials, float)
    kept = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
    x, trials = x[kept], trials[:, kept]
    rows = {
        "x": x,
        "mean": trials.mean(0),
        "lowest": trials.min(0),
        "highest": trials.max(0),
    }
    return {name: [rounded(value) for value in row] for name, row in rows.items()}


def draw_summary(
    ax, rows: Mapping[str, Any], label: str, color: str, **style: Any
) -> None:
    """Draw the result of `summary`."""
    x, mean, low, high = (
        np.asarray(rows[name], float) for name in ("x", "mean", "lowest", "highest")
    )
    ax.plot(x, mean, label=label, color=color, linewidth=1.8, markersize=4, **style)
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def rounded(value: float) -> float | str:
    """Round to four digits for JSON; inf and nan become strings."""
    return float(f"{value:.4g}") if math.isfinite(value) else str(float(value))


def legend(figure: Figure, axes, columns: int) -> None:
    """Draw one legend below all panels, which explains the band and has every label of `axes` once."""
    found: dict[str, Any] = {}
    for ax in np.ravel(axes):
        handles, labels = ax.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=columns, title=BAND, title_fontsize=8,
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


def save(
    args: argparse.Namespace,
    name: str,
    results: Mapping[str, Any],
    figure: Figure | None = None,
) -> None:
    """Write `name`.json to --out, and `name`.png if there is a figure."""
    args.out.mkdir(parents=True, exist_ok=True)
    facts = {"scale": args.scale, "seed": args.seed, **results}
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    files = {args.out / f"{name}.json": lambda path: path.write_text(text)}
    if figure is not None:
        files[args.out / f"{name}.png"] = lambda path: save_picture(figure, path)
    atomic.replace(files)
    print(f"wrote {' and '.join(map(str, files))}")
