"""What it buys to run the points of a grid as one program: 4 learning rates x 4 seeds of FedRep, beside 16 runs.

    python benchmarks/grid.py [--rounds 20] [--repeats 3] [--processes 2] [--devices N] [--out FILE.json]

Three ways: one vmapped program; 16 runs one after the other in one process, which share what is compiled; and a process
a run, as a loop in a shell does it, of which some are timed. Seconds of running are medians over repeats in turn, with
the smallest and the largest ratio; compilation is apart. A small network on digits, and a larger one on random images
whose weights do not fit the cache so well. The largest difference between the ways is that of any client's accuracy at
any evaluation and of any parameter of the server, relative to its largest entry.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from fedjax_srp.benchmark.measure import synthetic

RATES, SEEDS = (0.01, 0.02, 0.05, 0.1), (0, 1, 2, 3)
POINTS = [(rate, seed) for rate in RATES for seed in SEEDS]
SMALL = {"hidden": (64, 32), "local_epochs": 5}
LARGE = {"hidden": (512, 256, 64), "local_epochs": 1}


def runs_of(data: Any, rounds: int, options: dict[str, Any], points: list[tuple[float, int]]) -> dict[str, Any]:
    """The two ways within a process, as functions that simulate."""
    common = {"num_rounds": rounds, "eval_every": rounds, "progress": False}
    method = lambda rate: srp.methods.get("fedrep", dataset=data, learning_rate=rate, **options)  # noqa: E731
    keys = jnp.stack([jax.random.key(seed) for _, seed in points])
    values = {"learning_rate": [rate for rate, _ in points]}
    return {
        "together": lambda: srp.simulate_seeds(method(RATES[0]), data, keys=keys, values=values, **common),
        "one_by_one": lambda: [srp.simulate(method(r), data, key=jax.random.key(s), **common) for r, s in points],
    }


def difference(ours: list[srp.History], theirs: list[srp.History]) -> float:
    """The largest, relative to the largest entry of an array."""
    found = 0.0
    for one, other in zip(ours, theirs, strict=True):
        leaves = zip(jax.tree.leaves(one.server_state), jax.tree.leaves(other.server_state), strict=True)
        for a, b in (*leaves, (one.accuracy, other.accuracy)):
            found = max(found, float(np.abs(a - b).max() / np.abs(b).max()))
    return found


def compared(ways: dict[str, Any], rounds: int, repeats: int) -> dict[str, float]:
    """Seconds of both ways, in turn."""
    histories, compiling = {}, {}
    for name, way in ways.items():
        histories[name] = way()
        compiling[name] = sum({h.compile_seconds for h in histories[name]})
    apart = difference(histories["together"], histories["one_by_one"])
    running: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        running["together"].append(ways["together"]()[0].seconds_per_round * rounds)
        running["one_by_one"].append(sum(h.seconds_per_round for h in ways["one_by_one"]()) * rounds)
    ratios = [b / a for a, b in zip(running["together"], running["one_by_one"], strict=True)]
    result = {f"compile_{name}": seconds for name, seconds in compiling.items()}
    result |= {f"run_{name}": statistics.median(seconds) for name, seconds in running.items()}
    result |= {"run_ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return result | {"difference": apart}


def processes(number: int, rounds: int) -> list[float]:
    """Seconds of whole processes of the command line, one at a time."""
    seconds = []
    words = ["run", "--method", "fedrep", "--dataset", "digits", "--num-clients", "50", "--classes-per-client", "3"]
    words += ["--hidden", "64", "32", "--local-epochs", "5", "--num-rounds", str(rounds), "--eval-every", str(rounds)]
    words += ["--no-progress", "--no-checkpoint"]
    for rate, seed in POINTS[:number]:
        with tempfile.TemporaryDirectory() as folder:
            own = ["--learning-rate", str(rate), "--seed", str(seed), "--out", f"{folder}/run"]
            begin = time.perf_counter()
            command = [sys.executable, "-m", "fedjax_srp.commands.cli", *words, *own]
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 20), ("repeats", 3), ("processes", 2), ("devices", None)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--skip-large", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    devices = srp.use_all_cores(args.devices)
    results: dict[str, Any] = {}
    data = srp.data.load("digits", num_clients=50, classes_per_client=3)
    results["digits, 16 points"] = compared(runs_of(data, args.rounds, SMALL, POINTS), args.rounds, args.repeats)
    print(json.dumps(results, indent=1), flush=True)
    if not args.skip_large:
        images = synthetic(10, 150, 50, (28, 28))
        for size in (2, 4):
            ways = runs_of(images, 1, LARGE, POINTS[:size])
            results[f"784-512-256-64-10, {size} points"] = compared(ways, 1, args.repeats)
            print(json.dumps(results, indent=1), flush=True)
    if args.processes:
        results["a process a run"] = {"seconds": processes(args.processes, args.rounds)}
    machine = {"device": jax.devices()[0].device_kind, "num_devices": devices, "cores": os.cpu_count()}
    found = {"machine": machine | {"jax": jax.__version__}, "rounds": args.rounds, "repeats": args.repeats}
    found["seconds"] = results
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
