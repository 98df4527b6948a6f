"""FedRep, SRPFL and FedAvg-FT with differential privacy for clients: accuracy, time to a target, epsilon.

    python experiments/messages/privacy.py --scale smoke|cpu|full [--out DIR]

The setting of break_even.py: digits on 50 clients with 3 classes, MLP 64-32, fixed exponential speeds. A client's
message is clipped to norm 1, and the server adds noise of z times that to the sum. The sum is divided by the expected
cohort; for doubling cohorts either by all clients, as in the algorithm of McMahan et al. (2018), or by the size of each
stage, which no data decide. Epsilon is that of srp.messages.Private.epsilon, with and without amplification by
sampling. Private runs of FedRep and SRPFL are judged from the initial head, since the mean of heads is never noised;
the runs that are not private are judged from the mean head.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves, scripts

SCALES = {"smoke": (1, 3), "cpu": (3, 30), "full": (10, 150)}  # seeds, rounds
NUM_CLIENTS = 50
SHARED = {"hidden": (64, 32), "learning_rate": 0.05, "epochs": 5}
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


def measure(seeds: range, num_rounds: int) -> dict[str, dict[str, Any]]:
    """Return for each run, not private and at each noise, accuracies, times to the target and epsilon."""
    data = srp.data.load("digits", num_clients=NUM_CLIENTS, classes_per_client=3)
    results: dict[str, dict[str, Any]] = {}
    for name, (method_name, options, denominator) in RUNS.items():
        plain = srp.methods.get(method_name, dataset=data, **SHARED, **options)
        results[name] = {"not private": run(plain, data, seeds, num_rounds)}
        for noise in NOISES:
            private = srp.messages.Private(
                plain.algorithm,
                clip=CLIP,
                noise_multiplier=noise,
                denominator=denominator,
                unsent="initial",
            )
            method = dataclasses.replace(plain, algorithm=private)
            measured = run(method, data, seeds, num_rounds)
            results[name][f"{noise:g}"] = measured | privacy(method, num_rounds)
        print(f"{name}: {results[name]}", flush=True)
    return results


def run(
    method: srp.Method, data: srp.data.FederatedData, seeds: range, num_rounds: int
) -> dict[str, Any]:
    """Return final accuracy, and time and rounds to the target, of each seed; inf and 0 if it was not reached."""
    histories = srp.simulate_seeds(
        method,
        data,
        num_rounds=num_rounds,
        eval_every=1,
        seeds=list(seeds),
        clock=srp.clocks.Fixed(srp.clocks.Exponential(1.0)),
        progress=False,
    )
    times = []
    rounds = []
    for history in histories:
        index = history.reached(TARGET)
        times.append(np.inf if index is None else history.eval_elapsed()[index])
        rounds.append(0 if index is None else int(history.eval_round[index]))
    return {
        "accuracy": [curves.rounded(history.final_accuracy) for history in histories],
        "time": [curves.rounded(float(time)) for time in times],
        "rounds": rounds,
    }


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


def draw(results: dict[str, dict[str, Any]]) -> Figure:
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
    args = scripts.parser(__doc__, SCALES, "runs/messages", "seed").parse_args(arguments)
    num_seeds, num_rounds = SCALES[args.scale]
    results = measure(range(args.seed, args.seed + num_seeds), num_rounds)
    curves.save(args, "privacy", {"results": results}, draw(results))


if __name__ == "__main__":
    main()
