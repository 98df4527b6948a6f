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
SCALES = {  # samples of new clients, rounds, trials
    "smoke": ((2,), 5, 2),
    "cpu": ((1, 2, 5, 10, 20), 500, 10),
    "full": ((1, 2, 5, 10, 20), 500, 50),
}


def make_algorithm(label: str, task, evaluation_samples: int):
    """Return the algorithm, with an evaluation that fits a head to `evaluation_samples` samples of a client."""
    if label == "FedSGD":
        return synthetic.FedSGD(
            task,
            step_size=FEDSGD_STEP,
            samples=SAMPLES,
            evaluation_samples=evaluation_samples,
        )
    return synthetic.FedRepFromDescent(
        task,
        step_size=FEDREP_STEP,
        samples_per_round=SAMPLES,
        sampling="fixed",
        start="random",
        evaluation_samples=evaluation_samples,
    )


def main() -> None:
    args = scripts.parser(__doc__, SCALES, "runs/fedrep_figure4", "seed").parse_args()
    counts, rounds, trials = SCALES[args.scale]
    errors = {label: np.empty((trials, len(counts))) for label in COLORS}
    tasks, new = zip(
        *synthetic.make_trials(args.seed, trials, CLIENTS, NEW, DIM, RANK, SAMPLES),
        strict=True,
    )
    options = {
        "num_rounds": rounds,
        "eval_every": rounds,
        "evaluations": (),
        "chunk_size": CLIENTS,
    }
    for label in ("FedSGD", "FedRep"):
        algorithms = [make_algorithm(label, tasks[0], n) for n in counts]
        for trial, history in enumerate(
            scripts.simulate_each(algorithms[0], tasks, **options)
        ):
            key = jax.random.key(trial)
            for i, algorithm in enumerate(algorithms):
                scores = srp.evaluate(
                    algorithm, new[trial], history.server_state, key=key, devices=1
                )
                errors[label][trial, i] = np.median(scores["fit_head"])
    for trial, clients in enumerate(new):
        errors["Local only"][trial] = [
            np.median(synthetic.local_only(clients, n)) for n in counts
        ]

    figure, (ax,) = curves.panels(1, width=5.2)
    results = {}
    for label, color in COLORS.items():
        results[label] = curves.draw_line(
            ax, counts, errors[label], label, color, marker="o"
        )
    ax.set(
        xlabel="samples of a new client",
        xscale="log",
        yscale="log",
        xticks=counts,
        xticklabels=counts,
    )
    ax.set_xticks([], minor=True)
    ax.set_ylabel(r"median error $\|\theta - B^* w^*\|^2$")
    curves.legend(figure, ax, 3)
    curves.save(
        args, "figure4", {"trials": trials, "rounds": rounds, "results": results}, figure
    )


if __name__ == "__main__":
    main()
