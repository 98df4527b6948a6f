"""Time of `import fedjax_srp` compared with `import jax`: new processes in turn, medians of wall and CPU seconds.

python benchmarks/imports.py [--repeats 15] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

MODULES = ("jax", "fedjax_srp", "fedjax_srp.methods")  # the last one with flax and optax


def cpu_seconds() -> float:
    """CPU seconds of all child processes so far."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {module: [] for module in MODULES}
    for repeat in range(args.repeats + 1):
        for module in MODULES:
            begin, cpu = time.perf_counter(), cpu_seconds()
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
            if repeat:  # the first one writes compiled Python files
                found[module].append((time.perf_counter() - begin, cpu_seconds() - cpu))
    results: dict[str, dict[str, float]] = {}
    for module, times in found.items():
        ratios = [(own[0] / jax[0], own[1] / jax[1]) for own, jax in zip(times, found["jax"], strict=True)]
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        wall_ratio, cpu_ratio = (statistics.median(column) for column in zip(*ratios, strict=True))
        results[module] = {"seconds": wall, "cpu_seconds": cpu, "times_jax": wall_ratio, "cpu_times_jax": cpu_ratio}
        print(f"{module:<20}", "  ".join(f"{name} {value:.3g}" for name, value in results[module].items()))
    if args.out:
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "repeats": args.repeats}
        args.out.write_text(json.dumps(machine | {"imports": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
