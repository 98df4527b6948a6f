"""A benchmark's results as files: JSON, a table, a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedjax_srp.results import atomic


def write(results: dict[str, Any], out: Path) -> Path:
    """Writes `benchmark.json`, `benchmark.txt` and `benchmark.png` into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    atomic.replace(
        {
            out / "benchmark.json": lambda path: path.write_text(
                json.dumps(results, indent=1) + "\n", "utf-8"
            ),
            out / "benchmark.txt": lambda path: path.write_text(
                table(results) + "\n", "utf-8"
            ),
            out / "benchmark.png": lambda path: figure(results).savefig(
                path, dpi=100, format="png"
            ),
        }
    )
    return out


def table(results: dict[str, Any]) -> str:
    """Seconds of ours and of each rival (bytes where a row says so), medians, and the median ratio pair by pair."""
    head = ["what", "rival", "ours", "rival", "rival / ours"]
    rows = [
        [
            p["name"],
            p["against"],
            *(f"{p[k]:.4g}" for k in ("ours", "rival", "rival_over_ours")),
        ]
        for p in results["pairs"]
    ]
    rows += [[name, "", f"{value:.4g}", "", ""] for name, value in _flat_curves(results)]
    rows += [
        [f"compile: {name}", "", f"{value:.3g}", "", ""]
        for name, value in results["compile_seconds"].items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    machine = results["machine"]
    limits = results["limits"]
    lines = [
        f"{machine['num_devices']} x {machine['device']}, jax {machine['jax']}: "
        f"matrix products {limits['matrix_flops'] / 1e9:.4g} GFLOP/s, "
        f"memory {limits['memory_bytes_per_second'] / 1e9:.4g} GB/s, "
        f"peak memory {results['memory']['peak_bytes'] / 2**30:.2f} GiB",
        "",
    ]
    for row in (head, *rows):
        cells = [
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _flat_curves(results: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (f"{name} = {x}", value)
        for name, curve in results["curves"].items()
        for x, value in curve.items()
    ]


def figure(results: dict[str, Any]) -> Any:
    """Figure of the ratios of rivals, and of cost by cohort and federation."""
    from matplotlib.figure import Figure

    curves = results["curves"]
    pairs = results["pairs"][::-1]
    rows = max(0.32 * len(pairs) + 1.2, 5.0)
    columns = -(-len(curves) // 2)
    grid = [["pairs", *range(columns)], ["pairs", *range(columns, 2 * columns)]]
    drawn = Figure(figsize=(6 + 3.4 * columns, rows), layout="constrained")
    axes = drawn.subplot_mosaic(grid, width_ratios=[2] + [1] * columns)
    bars = axes["pairs"]
    ratios = [p["rival_over_ours"] for p in pairs]
    labels = [f"{p['name']}\nagainst {p['against']}" for p in pairs]
    drawn_bars = bars.barh(
        labels, [ratio - 1 for ratio in ratios], left=1.0
    )  # the axis has no 0 to begin at
    bars.bar_label(
        drawn_bars, [f"{ratio:.3g}" for ratio in ratios], padding=2, fontsize=7
    )
    bars.axvline(1.0, color="black", linewidth=0.8)
    bars.set_xscale("log")
    bars.set_xlim(min(1.0, *ratios) / 2, 2 * max(1.0, *ratios))
    bars.set_xlabel("times as long as ours; right of 1: faster here")
    bars.tick_params(axis="y", labelsize=7)
    for position, (name, curve) in enumerate(curves.items()):
        ax = axes[position]
        ax.plot([int(x) for x in curve], list(curve.values()), marker="o")
        ax.set_xscale("log")
        ax.set_ylim(0, 1.15 * max(curve.values()))
        ax.set_title(name, fontsize=8)
    for position in range(len(curves), 2 * columns):
        axes[position].set_axis_off()
    return drawn
