"""FedRep, SRPFL and FedAvg-FT with differential privacy for clients: accuracy, time to a target, epsilon.

    python experiments/messages/privacy.py --scale smoke|cpu|full [--results DIR]

The setting is that of break_even.py. A client's message is clipped to norm 1, and the server adds noise of z times that
to the sum. The sum is divided by the expected cohort; for doubling cohorts either by all clients, as in the algorithm
of McMahan et al. (2018), or by the size of each stage, which no data decide. Epsilon is that of
srp.messages.Private.epsilon, with and without amplification by sampling. Private runs of FedRep and SRPFL are judged
from the initial head, since the mean of heads is never noised; the runs that are not private are judged from the mean
head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.messages.break_even import reached

SCALES = {"smoke": (1, 3), "cpu": (3, 30), "full": (10, 150)}  # seeds, rounds
NUM_CLIENTS = scripts.DIGITS["num_clients"]
NOISES = (0.0, 1.0, 3.0)
DELTA = 1e-3
TARGET = 0.9
DOUBLING = {"participation": "doubling", "initial": 5, "rounds_per_stage": 5}
TRAININGS: dict[str, dict[str, Any]] = {
    "FedRep, everybody": {"method": "fedrep", "participation": "full"},
    "FedRep, 10 at random": {"method": "fedrep", "participation": "uniform", "k": 10},
    "SRPFL": {"method": "fedrep", **DOUBLING},
    "FedAvg-FT, everybody": {"method": "fedavg_ft", "participation": "full"},
    "FedAvg-FT, 10 at random": {
        "method": "fedavg_ft",
        "participation": "uniform",
        "k": 10,
    },
}
RUNS: dict[str, tuple[str, int | None]] = {  # training, denominator of the noised sum
    "FedRep, everybody": ("FedRep, everybody", NUM_CLIENTS),
    "FedRep, 10 at random": ("FedRep, 10 at random", 10),
    "SRPFL, divided by 50": ("SRPFL", NUM_CLIENTS),
    "SRPFL, divided by the cohort": ("SRPFL", None),
    "FedAvg-FT, everybody": ("FedAvg-FT, everybody", NUM_CLIENTS),
    "FedAvg-FT, 10 at random": ("FedAvg-FT, 10 at random", 10),
}
Results = dict[str, dict[str, Any]]


def private_runs(name: str) -> dict[str, dict[str, Any]]:
    """Return noise -> the options of a run with it."""
    training, denominator = RUNS[name]
    shared = {"clip": 1.0, "denominator": denominator, "unsent": "initial"}
    return {
        f"{noise:g}": TRAININGS[training] | shared | {"noise_multiplier": noise}
        for noise in NOISES
    }


def variants() -> dict[str, dict[str, Any]]:
    """Return all runs by name."""
    found = dict(TRAININGS)
    for name in RUNS:
        for noise, options in private_runs(name).items():
            found[f"{name}, z = {noise}"] = options
    return found


def measured(runs: Mapping[str, list[srp.History]], num_rounds: int) -> Results:
    """Return for each run, not private and at each noise, accuracies, times to the target and epsilon."""
    results: Results = {}
    for name, (training, _) in RUNS.items():
        results[name] = {"not private": of_seeds(runs[training])}
        for noise, options in private_runs(name).items():
            found = of_seeds(runs[f"{name}, z = {noise}"])
            results[name][noise] = found | privacy(options, num_rounds)
    return results


def of_seeds(histories: list[srp.History]) -> dict[str, list[Any]]:
    """Return the final accuracy of each seed, and time and rounds to the target."""
    columns = curves.columns([reached(history, TARGET) for history in histories])
    return {name: columns[name] for name in ("accuracy", "time", "rounds")}


def privacy(options: dict[str, Any], num_rounds: int) -> dict[str, Any]:
    """Return epsilon of the whole run, and that without amplification."""
    rest = dict(options)
    method = srp.methods.choose(rest.pop("method"), **rest).on_placeholder()
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


def main() -> None:
    args = scripts.grid_parser(__doc__, SCALES, "runs/messages", "seed").parse_args()
    num_seeds, num_rounds = SCALES[args.scale]
    runs = scripts.run_grid(
        args,
        variants=variants(),
        axes={"seed": scripts.seeds_of(args, num_seeds)},
        options=scripts.DIGITS | {"num_rounds": num_rounds, "eval_every": 1},
    ).histories_by("variant")
    results = measured(runs, num_rounds)
    curves.save(args, "privacy", {"results": results}, draw(results))


if __name__ == "__main__":
    main()
