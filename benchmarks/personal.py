"""Rounds of personalisation methods against the passes over the data that they consist of, each timed on its own.

    python benchmarks/personal.py [--methods NAME ...] [--repeats 15] [--quick] [--out FILE.json]

Ditto is two local trainings, SCAFFOLD one, a FedRep round ten epochs of a head and one of a representation. A pass is a
round of a method that does nothing else: FedAvg for training all layers, FedRep without one of its two halves. A
ratio above 1 shows the cost of the rest: penalties, variates, mixtures, the states of its clients.

Times are CPU seconds of the process, with one device and one thread, method and passes in turn, and ratios are medians
over pairs with quartiles: other processes disturb little, though caches and clock rates are shared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
from harness.measure import Rounds, in_turn, synthetic

import fedjax_srp as srp

PASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "all layers": ("fedavg", {}),
    "ten epochs of the head": ("fedrep", {"representation_epochs": 0}),
    "representation": ("fedrep", {"head_epochs": 0}),
    "gradient over all examples": ("fedavg", {"batch_size": 10**6}),
}
# method -> options that make its round comparable, passes that it consists of
METHODS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "local_only": ({}, {"all layers": 1}),
    "fedprox": ({}, {"all layers": 1}),
    "scaffold": ({}, {"all layers": 1}),
    "fed_mtl": ({}, {"all layers": 1}),
    "lg_fedavg": ({}, {"all layers": 1}),
    "fedper": ({}, {"all layers": 1}),
    "l2gd": ({"aggregation_probability": 0.0}, {"all layers": 1}),  # every round trains
    "apfl": ({}, {"all layers": 2}),  # two gradients a step
    "ditto": ({}, {"all layers": 2}),
    "per_fedavg": ({}, {"all layers": 4}),  # four gradients a step
    "fedrep": ({}, {"ten epochs of the head": 1, "representation": 1}),
    "fedsgd": ({}, {"gradient over all examples": 1}),
}
BOUND = 1.3


def cpu_seconds(function: Callable[[], object], times: int) -> float:
    """CPU time of the process for a call, the mean over `times` calls."""
    begin = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - begin) / times


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="toy sizes, to check that it runs")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmark/personal.json"), help="results of other methods in it are kept"
    )
    args = parser.parse_args(arguments)
    clients, examples, hidden = (4, 20, (8, 8)) if args.quick else (20, 150, (512, 256, 64))
    data = synthetic(clients, examples, tests=2)

    def rounds(name: str, options: dict[str, Any]) -> Rounds:
        method = srp.methods.get(name, dataset=data, hidden=hidden, momentum=0.5, participation="full", **options)
        return Rounds(method.algorithm, data, srp.participation.Full(), devices=1)

    machine = {"device": jax.devices()[0].device_kind, "processor": platform.machine(), "jax": jax.__version__}
    setting = {"clients": clients, "examples": examples, "hidden": list(hidden), "repeats": args.repeats}
    facts: dict[str, Any] = {"machine": machine, **setting, "results": {}}
    if args.out.is_file() and (known := json.loads(args.out.read_text("utf-8"))) | {"results": {}} == facts:
        facts = known  # results of other methods
    args.out.parent.mkdir(parents=True, exist_ok=True)
    passes: dict[str, Rounds] = {}
    for name in args.methods:
        options, consists_of = METHODS[name]
        for part in consists_of:
            if part not in passes:
                passes[part] = rounds(PASSES[part][0], PASSES[part][1])
        ours = rounds(name, options)
        times = max(1, round(0.2 / max(1e-4, cpu_seconds(ours, 1))))
        contenders = {part: partial(cpu_seconds, passes[part], times) for part in consists_of}
        found = in_turn({"round": partial(cpu_seconds, ours, times)} | contenders, args.repeats, 0.0)
        expected = sum(count * np.array(found[part]) for part, count in consists_of.items())
        ratios = np.array(found["round"]) / expected
        low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        facts["results"][name] = {
            "passes": consists_of,
            "milliseconds": round(1000 * float(np.median(found["round"])), 3),
            "ratio": round(float(median), 3),
            "quartiles": [round(float(low), 3), round(float(high), 3)],
        }
        much = "" if median <= BOUND else f"  above {BOUND}"
        of = " + ".join(f"{count} x {part}" for part, count in consists_of.items())
        args.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
        print(f"{name:12s} {median:5.2f} ({low:.2f} to {high:.2f}) of {of}{much}", flush=True)


if __name__ == "__main__":
    main()
