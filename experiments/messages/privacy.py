"""FedRep, SRPFL and FedAvg-FT with differential privacy for clients: accuracy, time to a target, epsilon.

    python experiments/messages/privacy.py --scale smoke|cpu|full [--out DIR]

The setting is that of setting.py. A client's message is clipped to norm 1, and the server adds noise of z times that to
the sum. The sum is divided by the expected cohort; for doubling cohorts either by all clients, as in the algorithm of
McMahan et al. (2018), or by the size of each stage, which no data decide. Epsilon is that of
srp.messages.Private.epsilon, with and without amplification by sampling. Private runs of FedRep and SRPFL are judged
from the initial head, since the mean of heads is never noised; the runs that are not private are judged from the mean
head.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves
from experiments.messages.setting import (
    MODEL,
    NUM_CLIENTS,
    Results,
    digits,
    reached,
    run_seeds,
    run_study,
)

SCALES = {"smoke": (1, 3), "cpu": (3, 30), "full": (10, 150)}  # seeds, rounds
CLIP = 1.0
NOISES = (0.0, 1.0, 3.0)
DELTA = 1e-3
TARGET = 0.9
DOUBLING = {"participation": "doubling", "initial": 5, "rounds_per_stage": 5}
# name -> method, its options, and the denominator of the noised sum
RUNS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "FedRep, everybody": ("fedrep", {"participation": "full"}, NUM_CLIENTS),
    "FedRep, 10 at random": ("fedrep", {"participation": "uniform", "k": 10}, 10),
    "SRPFL, divided by 50": ("fedrep", DOUBLING, NUM_CLIENTS),
    "SRPFL, divided by the cohort": ("fedrep", DOUBLING, None),
    "FedAvg-FT, everybody": ("fedavg_ft", {"participation": "full"}, NUM_CLIENTS),
    "FedAvg-FT, 10 at random": ("fedavg_ft", {"participation": "uniform", "k": 10}, 10),
}


def measure(seeds: range, num_rounds: int) -> Results:
    """Return for each run, not private and at each noise, accuracies, times to the target and epsilon."""
    data = digits()

    def of_seeds(method: srp.Method) -> dict[str, Any]:
        histories = run_seeds(method, data, seeds, num_rounds)
        of_each = [reached(history, TARGET) for history in histories]
        names = ("accuracy", "time", "rounds")
        return {name: [run[name] for run in of_each] for name in names}

    results: Results = {}
    for name, (method_name, options, denominator) in RUNS.items():
        plain = srp.methods.get(method_name, dataset=data, **MODEL, **options)
        results[name] = {"not private": of_seeds(plain)}
        for noise in NOISES:
            private = srp.messages.Private(
                plain.algorithm,
                clip=CLIP,
                noise_multiplier=noise,
                denominator=denominator,
                unsent="initial",
            )
            method = dataclasses.replace(plain, algorithm=private)
            results[name][f"{noise:g}"] = of_seeds(method) | privacy(method, num_rounds)
        print(f"{name}: {results[name]}", flush=True)
    return results


def privacy(method: srp.Method, num_rounds: int) -> dict[str, Any]:
    """Return epsilon of the whole run, and that without amplification."""
    private: Any = method.algorithm
    loss = private.epsilon(method.participation, NUM_CLIENTS, num_rounds, DELTA)
    return {
        "epsilon": curves.rounded(loss.epsilon),
        "without amplification": curves.rounded(loss.without_amplification),
    }


STYLES = {  # color and line; a method has one color
    "FedRep, everybody": (curves.BLUE, "o--"),
    "FedRep, 10 at random": (curves.BLUE, "s:"),
    "SRPFL, divided by 50": (curves.ORANGE, "o-"),
    "SRPFL, divided by the cohort": (curves.ORANGE, "s-."),
    "FedAvg-FT, everybody": (curves.PINK, "o--"),
    "FedAvg-FT, 10 at random": (curves.PINK, "s:"),
}


def draw(results: Results) -> Figure:
    """Draw the mean final accuracy over epsilon, with amplification where it holds."""
    figure, axes = curves.panels(1, width=6.4, height=4.4)
    for name, of_run in results.items():
        points = []
        for noise in NOISES:
            at_noise = of_run[f"{noise:g}"]
            if np.isfinite(float(at_noise["epsilon"])):
                points.append((at_noise["epsilon"], np.mean(at_noise["accuracy"])))
        points.sort()
        color, line = STYLES[name]
        axes[0].plot(*zip(*points, strict=True), line, color=color, label=name)
    axes[0].set(
        xscale="log",
        xlabel=f"epsilon at delta = {DELTA:g}",
        ylabel="final accuracy",
    )
    caption = "digits, 50 clients, clip 1; right: z = 1, left: z = 3; mean over the seeds"
    curves.legend(figure, axes, 2, caption)
    return figure


def main(arguments: list[str] | None = None) -> None:
    run_study(__doc__, SCALES, "privacy", measure, draw, arguments)


if __name__ == "__main__":
    main()
