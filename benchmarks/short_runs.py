"""Processor time of many short runs in a grid: four methods on digits, ten rounds, no batches.

    python benchmarks/short_runs.py [--runs 20 100] [--workers 2] [--out FILE.json]

Grids of two sizes run one after the other, each in a new folder with new workers. The line through both is the time of
planning, starting workers and compiling, and that of one more run, from which follows the time of 1,000 runs. Seconds
are those of all processes, which a busy machine changes least; wall-clock seconds stand beside them.
"""

from __future__ import annotations

import json
import os
import tempfile
import time

import jax
from harness.command import parser, write
from harness.measure import machine

import fedjax_srp as srp

METHODS = ("fedavg_ft", "fedrep", "srpfl", "ditto")
OPTIONS = {
    "dataset": "digits",
    "num_clients": 50,
    "classes_per_client": 3,
    "hidden": (64, 32),
    "epochs": 5,
    "initial": 5,
    "num_rounds": 10,
    "eval_every": 5,
}
MANY = 1000


def processor_seconds() -> float:
    """Return the seconds of this process and of those that have ended."""
    taken = os.times()
    return taken.user + taken.system + taken.children_user + taken.children_system


def measured(runs: int, workers: int) -> dict[str, float]:
    """Run a grid with this many runs, and return its seconds."""
    begin = time.perf_counter()
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        grid = srp.grid(
            axes={"method": METHODS, "seed": range(runs // len(METHODS))},
            options=OPTIONS,
            out=folder,
            workers=workers,
            batch=1,
            progress=False,
        )
    assert len(grid.folders) == runs, grid
    wall = time.perf_counter() - begin
    return {"runs": runs, "processor": processor_seconds() - before, "wall": wall}


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--runs", type=int, nargs=2, default=(20, 100))
    command.add_argument("--workers", type=int, default=2)
    args = command.parse_args()
    jax.config.update("jax_platforms", "cpu")  # this process only plans
    few, more = (measured(runs, args.workers) for runs in args.runs)
    each = (more["processor"] - few["processor"]) / (more["runs"] - few["runs"])
    once = few["processor"] - each * few["runs"]
    results = {
        "machine": machine(),
        "workers": args.workers,
        "measured": [few, more],
        "once": once,
        "each": each,
        "core_hours_of_1000_runs": (once + MANY * each) / 3600,
    }
    print(json.dumps(results, indent=1))
    write(args.out, results)


if __name__ == "__main__":
    main()
