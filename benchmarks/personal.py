"""Rounds of personalisation methods against the passes over the data that they consist of, each timed on its own.

    python benchmarks/personal.py [--repeats 15] [--out FILE.json]

Ditto is two local trainings, SCAFFOLD one, a FedRep round ten epochs of a head and one of a representation. A pass is a
round of a method that does nothing else: FedAvg for training all layers, FedRep without one of its two halves. A
ratio above 1 shows the cost of the rest: penalties, variates, mixtures, the states of its clients.

Times are CPU seconds of the process, with one device and one thread, method and passes in turn, and ratios are medians
over pairs with quartiles: other processes disturb little, though caches and clock rates are shared.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np
from harness.command import parser, write
from harness.measure import Rounds, cpu_seconds, in_turn, machine, synthetic

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


def main() -> None:
    args = parser(__doc__, 15).parse_args()
    data = synthetic(20, 150, tests=2)

    def rounds(name: str, options: dict[str, Any]) -> Rounds:
        method = srp.methods.get(
            name, dataset=data, momentum=0.5, participation="full", **options
        )
        return Rounds(method.algorithm, data, srp.participation.Full(), devices=1)

    passes = {part: rounds(*of) for part, of in PASSES.items()}
    results: dict[str, Any] = {
        "machine": machine(),
        "repeats": args.repeats,
        "results": {},
    }
    for name, (options, consists_of) in METHODS.items():
        contenders = {"round": rounds(name, options)} | {
            part: passes[part] for part in consists_of
        }
        times = max(1, round(0.2 / max(1e-4, cpu_seconds(contenders["round"]))))
        found = in_turn(
            {one: partial(cpu_seconds, run, times) for one, run in contenders.items()},
            args.repeats,
            0.0,
        )
        expected = sum(
            count * np.array(found[part]) for part, count in consists_of.items()
        )
        low, median, high = np.quantile(
            np.array(found["round"]) / expected, (0.25, 0.5, 0.75)
        ).tolist()
        milliseconds = 1000 * float(np.median(found["round"]))
        facts = {
            "passes": consists_of,
            "milliseconds": milliseconds,
            "ratio": median,
            "quartiles": [low, high],
        }
        results["results"][name] = facts
        write(args.out, results)
        of = " + ".join(f"{count} x {part}" for part, count in consists_of.items())
        print(f"{name:12s} {median:5.2f} ({low:.2f} to {high:.2f}) of {of}", flush=True)


if __name__ == "__main__":
    main()
