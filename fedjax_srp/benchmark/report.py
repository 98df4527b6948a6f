"""A benchmark's results as files: JSON, a table, a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(results: dict[str, Any], out: Path) -> Path:
    """Writes `benchmark.json`, `benchmark.txt` and `benchmark.png` into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmark.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (out / "benchmark.txt").write_text(table(results) + "\n", "utf-8")
    figure(results).savefig(out / "benchmark.png", dpi=150)
    return out


def table(results: dict[str, Any]) -> str:
    """Seconds of ours and of each rival, medians, and the median ratio pair by pair."""
    head = ["what", "rival", "ours (s)", "rival (s)", "rival / ours"]
    rows = [
        [p["name"], p["against"], *(f"{p[k]:.4g}" for k in ("ours", "rival", "rival_over_ours"))]
        for p in results["pairs"]
    ]
    rows += [[name, "", f"{value:.4g}", "", ""] for name, value in _flat_curves(results)]
    rows += [[f"compile: {name}", "", f"{value:.3g}", "", ""] for name, value in results["compile_seconds"].items()]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    machine, limits = results["machine"], results["limits"]
    lines = [
        f"{machine['num_devices']} x {machine['device']}, jax {machine['jax']}: "
        f"matrix products {limits['matrix_flops'] / 1e9:.4g} GFLOP/s, "
        f"memory {limits['memory_bytes_per_second'] / 1e9:.4g} GB/s, "
        f"peak memory {results['memory']['peak_bytes'] / 2**30:.2f} GiB",
        "",
    ]
    for row in (head, *rows):
        cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _flat_curves(results: dict[str, Any]) -> list[tuple[str, float]]:
    return [(f"{name} = {x}", value) for name, curve in results["curves"].items() for x, value in curve.items()]


def figure(results: dict[str, Any]) -> Any:
    """How many times longer the rivals take, and how cost follows cohort and federation."""
    from matplotlib.figure import Figure

    curves = results["curves"]
    drawn = Figure(figsize=(6 + 3.2 * len(curves), 0.34 * len(results["pairs"]) + 1.6), layout="constrained")
    axes = drawn.subplots(1, 1 + len(curves), width_ratios=[2] + [1] * len(curves), squeeze=False)[0]
    pairs = results["pairs"][::-1]
    axes[0].barh([f"{p['name']}\nagainst {p['against']}" for p in pairs], [p["rival_over_ours"] for p in pairs])
    axes[0].axvline(1.0, color="black", linewidth=0.8)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("times as long as ours")
    axes[0].tick_params(axis="y", labelsize=7)
    for ax, (name, curve) in zip(axes[1:], curves.items(), strict=True):
        ax.plot([int(x) for x in curve], list(curve.values()), marker="o")
        ax.set_xscale("log")
        ax.set_ylim(bottom=0)
        ax.set_title(name, fontsize=8)
    return drawn
