"""Cost of FedGATE and FLANP's criterion compared with FedAvg with the same local steps: whole rounds, paired.

    python benchmarks/flanp.py [--repeats 15] [--out FILE.json]

All clients take part, with the network 128-64 of FLANP's experiments on random images of 28 x 28. "fedgate" has no
criterion; "fedgate with criterion" is `statistical_accuracy` that starts with all clients, so that its rounds are those
of FLANP's last stage: one more pass over all examples of each client. Contenders are timed in turn, and ratios are
medians over repeats. The process is bound to one core and its CPU time is measured, so that other processes disturb it
little. Linux only.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from harness.command import parser, write
from harness.measure import Rounds, cpu_seconds, in_turn, ratios, synthetic

import fedjax_srp as srp


class Case(NamedTuple):
    """A federation and the local work of a round."""

    num_clients: int
    examples: int
    work: dict[str, Any]


CASES = {
    "1 epoch in batches of 10": Case(20, 600, {"batch_size": 10}),
    "3 epochs in batches of 10": Case(20, 600, {"batch_size": 10, "epochs": 3}),
    "3.2 epochs, 60 steps of 32": Case(
        20, 600, {"batch_size": 32, "epochs": None, "steps": 60}
    ),
    "10 epochs in batches of 10": Case(20, 200, {"batch_size": 10, "epochs": 10}),
}


def contenders(case: Case) -> dict[str, Rounds]:
    """Compiled rounds of each method."""
    data = synthetic(case.num_clients, case.examples, tests=10)
    model = srp.models.MLP(data.example_shape, data.num_classes, (128, 64))
    fedavg = srp.algorithms.FedAvg
    fedgate = srp.algorithms.FedGATE
    training = srp.Training(**case.work)
    criterion = srp.participation.StatisticalAccuracy(case.num_clients)
    return {
        "fedavg": Rounds(fedavg(model, training), data),
        "fedgate": Rounds(fedgate(model, training), data),
        "fedgate with criterion": Rounds(fedgate(model, training), data, criterion),
    }


def measure(case: Case, repeats: int) -> dict[str, dict[str, Any]]:
    """Seconds of CPU time a round and ratio to FedAvg of each contender: medians, and quartiles of the ratio."""
    times = in_turn(
        {name: partial(cpu_seconds, run) for name, run in contenders(case).items()},
        repeats,
        0.0,
    )
    found = {}
    for name, taken in times.items():
        low, middle, high = np.quantile(
            ratios(times, name, "fedavg"), (0.25, 0.5, 0.75)
        ).tolist()
        found[name] = {
            "cpu_seconds": float(np.median(taken)),
            "ratio": middle,
            "quartiles": [low, high],
        }
    return found


def main() -> None:
    """Prints a line for each method and case."""
    args = parser(__doc__, 15).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results = {}
    for title, case in CASES.items():
        results[title] = measure(case, args.repeats)
        print(title)
        for name, row in results[title].items():
            print(
                f"  {name:24s}",
                "  ".join(f"{what} {value}" for what, value in row.items()),
                flush=True,
            )
        write(args.out, {"repeats": args.repeats, "cases": results})


if __name__ == "__main__":
    main()
