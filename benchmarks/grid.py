"""Points of a grid as one program, compared with separate runs: 4 learning rates x 4 seeds of FedRep.

    python benchmarks/grid.py [--rounds 20] [--repeats 3] [--processes 2] [--devices N] [--out FILE.json]

Three ways: one vmapped program; 16 runs one after the other in one process, which share compiled programs; and a
process for each run, as in a shell loop, of which some are measured. Seconds are CPU seconds of all threads, which a
busy machine changes least; medians over repeats in turn, with the smallest and the largest ratio. Compilation is the
first call less the median of the others. A small network on digits, and a larger one on random images. Results of the
ways are compared too: the largest difference of any parameter of the server, relative to the largest entry of its
array, and the number of predictions that differ in the last evaluation.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.command import parser, write
from harness.measure import cpu_seconds, in_turn, machine, ratios, synthetic

import fedjax_srp as srp

RATES = (0.01, 0.02, 0.05, 0.1)
SEEDS = (0, 1, 2, 3)
POINTS = [(rate, seed) for rate in RATES for seed in SEEDS]
SMALL = {"hidden": (64, 32), "epochs": 5}
LARGE = {"hidden": (512, 256, 64), "epochs": 1}


def runs_of(
    data: Any, rounds: int, options: dict[str, Any], points: list[tuple[float, int]]
) -> dict[str, Any]:
    """The two ways within a process, as functions that simulate."""
    common = {"num_rounds": rounds, "eval_every": rounds, "progress": False}
    method = lambda rate: srp.methods.get(
        "fedrep", dataset=data, learning_rate=rate, **options
    )
    keys = jnp.stack([jax.random.key(seed) for _, seed in points])
    values = {"learning_rate": [rate for rate, _ in points]}
    return {
        "together": lambda: srp.simulate_seeds(
            method(RATES[0]), data, keys=keys, values=values, **common
        ),
        "one_by_one": lambda: [
            srp.simulate(method(r), data, key=jax.random.key(s), **common)
            for r, s in points
        ],
    }


def difference(ours: list[srp.History], theirs: list[srp.History]) -> dict[str, float]:
    """Differences between runs, of parameters and of predictions in the last evaluation."""
    parameters = 0.0
    answers = 0
    for one, other in zip(ours, theirs, strict=True):
        leaves = zip(
            jax.tree.leaves(one.server_state),
            jax.tree.leaves(other.server_state),
            strict=True,
        )
        parameters = max(
            parameters, *(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in leaves)
        )
        answers += round(
            float((np.abs(one.accuracy - other.accuracy)[-1] * one.test_count).sum())
        )
    return {
        "difference": parameters,
        "answers": answers,
        "of": int(sum(h.test_count.sum() for h in ours)),
    }


def compared(ways: dict[str, Any], repeats: int) -> dict[str, float]:
    """Processor seconds of both ways, in turn."""
    histories: dict[str, list[srp.History]] = {}
    run = lambda name: histories.update({name: ways[name]()})
    times = in_turn(
        {name: partial(cpu_seconds, partial(run, name)) for name in ways},
        1 + repeats,
        0.0,
    )
    first = {name: taken.pop(0) for name, taken in times.items()}
    running = {name: statistics.median(taken) for name, taken in times.items()}
    over = ratios(times, "one_by_one", "together")
    result = {f"compile_{name}": first[name] - running[name] for name in ways}
    result |= {f"run_{name}": found for name, found in running.items()}
    result |= {
        "run_ratio": statistics.median(over),
        "ratio_min": min(over),
        "ratio_max": max(over),
    }
    return result | difference(histories["together"], histories["one_by_one"])


def processes(number: int, rounds: int) -> list[float]:
    """Processor seconds of whole processes of the command line, one at a time."""
    seconds = []
    words = [
        "run",
        "--method",
        "fedrep",
        "--dataset",
        "digits",
        "--num-clients",
        "50",
        "--classes-per-client",
        "3",
    ]
    words += [
        "--hidden",
        "64",
        "32",
        "--epochs",
        "5",
        "--num-rounds",
        str(rounds),
        "--eval-every",
        str(rounds),
    ]
    words += ["--no-progress", "--no-checkpoint"]
    for rate, seed in POINTS[:number]:
        with tempfile.TemporaryDirectory() as folder:
            own = [
                "--learning-rate",
                str(rate),
                "--seed",
                str(seed),
                "--out",
                f"{folder}/run",
            ]
            begin = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "fedjax_srp.lab.commands.cli", *words, *own]
            subprocess.run(command, check=True, capture_output=True)
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
    return seconds


def main() -> None:
    command = parser(__doc__, 3)
    for name, default in (("rounds", 20), ("processes", 2), ("devices", None)):
        command.add_argument(f"--{name}", type=int, default=default)
    args = command.parse_args()
    srp.use_all_cores(args.devices)
    results: dict[str, Any] = {}
    data = srp.data.load("digits", num_clients=50, classes_per_client=3)
    results["digits, 16 points"] = compared(
        runs_of(data, args.rounds, SMALL, POINTS), args.repeats
    )
    print(json.dumps(results, indent=1), flush=True)
    images = synthetic(10, 150, 50, (28, 28))
    results["784-512-256-64-10, 4 points"] = compared(
        runs_of(images, 1, LARGE, POINTS[:4]), args.repeats
    )
    results["a process a run"] = {"each": processes(args.processes, args.rounds)}
    print(json.dumps(results, indent=1))
    facts = {"machine": machine(), "rounds": args.rounds, "repeats": args.repeats}
    write(args.out, facts | {"processor_seconds": results})


if __name__ == "__main__":
    main()
