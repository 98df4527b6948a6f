"""Setting of both studies: digits on 50 clients with 3 classes, MLP 64-32, fixed exponential speeds.

The division of the data is one; a seed draws speeds, first model and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves, scripts

NUM_CLIENTS = 50
MODEL = {"hidden": (64, 32), "learning_rate": 0.05, "epochs": 5}

Results = dict[str, dict[str, Any]]


def digits() -> srp.data.FederatedData:
    """Load the data."""
    return srp.data.load("digits", num_clients=NUM_CLIENTS, classes_per_client=3)


def run_seeds(
    method: srp.Method, data: srp.data.FederatedData, seeds: range, num_rounds: int
) -> list[srp.History]:
    """Simulate a method with each seed, evaluated after every round."""
    return srp.simulate_seeds(
        method,
        data,
        num_rounds=num_rounds,
        eval_every=1,
        seeds=list(seeds),
        clock=srp.clocks.Fixed(srp.clocks.Exponential(1.0)),
        progress=False,
    )


def reached(history: srp.History, target: float) -> dict[str, Any]:
    """Return time and rounds until the target, inf and 0 if it was not reached; final accuracy."""
    index = history.reached(target)
    time = np.inf if index is None else history.eval_elapsed()[index]
    return {
        "time": curves.rounded(float(time)),
        "rounds": 0 if index is None else int(history.eval_round[index]),
        "accuracy": curves.rounded(history.final_accuracy),
    }


def run_study(
    description: str | None,
    scales: dict[str, tuple[int, int]],
    name: str,
    measure: Callable[[range, int], Results],
    draw: Callable[[Results], Figure],
    arguments: list[str] | None,
) -> None:
    """Run a study from the command line, and write its results and its picture."""
    parser = scripts.parser(description, scales, "runs/messages", "seed")
    args = parser.parse_args(arguments)
    num_seeds, num_rounds = scales[args.scale]
    results = measure(range(args.seed, args.seed + num_seeds), num_rounds)
    curves.save(args, name, {"results": results}, draw(results))
