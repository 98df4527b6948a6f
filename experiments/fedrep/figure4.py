"""Figure 4 of the FedRep paper: a new client with few samples, on a representation that others have learnt.

    python experiments/fedrep/figure4.py --scale smoke|cpu|full [--results DIR] [--seed N]

The paper shows the error of a client that took no part in training and has 1, 2, 5, 10 or 20 samples: trained on its
own samples alone, or fitting a head to the representation of FedSGD or of FedRep. FedRep's representation gives an
accurate model from about k samples on; FedSGD's does not help; training alone takes about d samples.

As in the paper: d=20, k=2, n=100 training clients, trained as in `figure1.py`, which describes steps, start and
differences.

Differs: training clients have m=10 samples (the number is lost in our copy of the paper); every trial has 100 new
clients and takes the MEDIAN of their errors, because their mean has no finite expectation where a square system is
solved (with k samples, or d without a representation). New samples have the training clients' noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.fedrep import synthetic
from experiments.fedrep.figure1 import (
    CLIENTS,
    COLORS,
    DIM,
    FEDREP_STEP,
    FEDSGD_STEP,
    RANK,
)

NEW, SAMPLES = 100, 10
COUNTS = (1, 2, 5, 10, 20)  # samples of new clients
SCALES = {
    "smoke": {"counts": (2,), "rounds": 5, "trials": 2},
    "cpu": {"counts": COUNTS, "rounds": 500, "trials": 10},
    "full": {"counts": COUNTS, "rounds": 500, "trials": 50},
}


def algorithm_of(label: str, task, evaluation_samples: int):
    """Return the algorithm, with an evaluation that fits a head to `evaluation_samples` samples of a client."""
    options: dict = {"evaluation_samples": evaluation_samples}
    if label == "FedRep":
        options |= {"step_size": FEDREP_STEP, "samples_per_round": SAMPLES}
        return synthetic.fedrep_from("descent", task, **options)
    return synthetic.FedSGD(task, step_size=FEDSGD_STEP, samples=SAMPLES, **options)


def errors_of_new_clients(
    label: str, counts: Sequence[int], rounds: int, trials: int, seed: int
) -> list[list[float]]:
    """Return the (trials, counts) median errors of new clients."""
    sizes = (CLIENTS, NEW, DIM, RANK, SAMPLES)
    drawn = synthetic.make_trials(seed, trials, *sizes)
    tasks, new = zip(*drawn, strict=True)
    if label == "Local only":
        return [
            [float(np.median(synthetic.local_only(clients, n))) for n in counts]
            for clients in new
        ]
    algorithms = [algorithm_of(label, tasks[0], n) for n in counts]
    options = {"num_rounds": rounds, "eval_every": rounds, "evaluations": ()}
    histories = scripts.simulate_each(algorithms[0], tasks, chunk_size=CLIENTS, **options)
    errors = []
    for trial, history in enumerate(histories):
        key = jax.random.key(trial)
        of_trial = []
        for algorithm in algorithms:
            scores = srp.evaluate(
                algorithm, new[trial], history.server_state, key=key, devices=1
            )
            of_trial.append(float(np.median(scores["fit_head"])))
        errors.append(of_trial)
    return errors


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedrep_figure4", "seed"
    ).parse_args()
    options = SCALES[args.scale]
    counts, rounds, trials = options.values()
    axes = {"label": list(COLORS)}
    found = scripts.measure_each(args, errors_of_new_clients, axes=axes, options=options)
    figure, (ax,) = curves.panels(1, width=5.2)
    results = {}
    for (label, color), errors in zip(COLORS.items(), found, strict=True):
        results[label] = curves.draw_line(ax, counts, errors, label, color, marker="o")
    ax.set(xlabel="samples of a new client", xscale="log", yscale="log")
    curves.ticks_at(ax, counts)
    ax.set_ylabel(r"median error $\|\theta - B^* w^*\|^2$")
    curves.legend(figure, ax, 3)
    facts = {"trials": trials, "rounds": rounds, "results": results}
    curves.save(args, "figure4", facts, figure)


if __name__ == "__main__":
    main()
