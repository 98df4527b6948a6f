"""Figure 1 of "FedAvg with fine tuning: local updates lead to representation learning".

    python experiments/fedavg_representation/figure1.py --scale smoke|cpu|full [--results DIR] [--seed N]

The paper shows that FedAvg with two local updates converges linearly to the ground-truth representation on linear
tasks, and that distributed gradient descent (D-GD, one local update) does not learn it.

As in the paper: population losses 1/2 ||B w - B* w_i*||^2, d=100, k=5, M=40 clients, all in every round, w_i* ~
N(0, I_k), B starts orthonormal / sqrt(alpha), w at 0, alpha=0.4, 10 trials with heads, representation and start drawn
anew.

Differs: in double precision, which follows the linear rate to 1e-14; single precision ends near 1e-6. The paper draws
the mean of the trials, here with a band.
"""

from __future__ import annotations

import jax
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts

CLIENTS, DIM, RANK, STEP = 40, 100, 5, 0.4
METHODS = {
    "FedAvg, 2 local updates": (2, curves.BLUE),
    "D-GD, 1 local update": (1, curves.ORANGE),
}
SCALES = {
    "smoke": {"rounds": 10, "trials": 2},
    "cpu": {"rounds": 250, "trials": 10},
    "full": {"rounds": 500, "trials": 50},
}


def tasks(trials: int, seed: int) -> list:
    keys = jax.random.split(jax.random.key(seed), trials)
    return [
        srp.data.linear_task(key, CLIENTS, DIM, RANK, heads="gaussian") for key in keys
    ]


def runs(tasks: list, rounds: int, local_steps: int, step_size: float = STEP) -> list:
    """Return FedAvg's history on each task."""
    algorithm = srp.algorithms.LinearFedAvg(
        tasks[0], step_size=step_size, local_steps=local_steps
    )
    options = {"evaluations": (), "chunk_size": CLIENTS}
    return scripts.simulate_each(
        algorithm, tasks, num_rounds=rounds, eval_every=rounds, **options
    )


@scripts.in_double_precision
def distances(label: str, rounds: int, trials: int, seed: int) -> list[np.ndarray]:
    """Return the (trials, rounds) distances of a method."""
    histories = runs(tasks(trials, seed), rounds, METHODS[label][0])
    return [history.metrics["distance"] for history in histories]


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedavg_representation_figure1", "seed"
    ).parse_args()
    options = SCALES[args.scale]
    axes = {"label": list(METHODS)}
    found = scripts.measure_each(args, distances, axes=axes, options=options)
    figure, (ax,) = curves.panels(1, width=5.2)
    rounds = np.arange(1, options["rounds"] + 1)
    results = {}
    for (label, (_, color)), distance in zip(METHODS.items(), found, strict=True):
        results[label] = curves.draw_line(ax, rounds, distance, label, color)
    ax.set(xlabel="round", yscale="log", ylabel=r"distance dist$(B, B^*)$")
    curves.legend(figure, ax, 2)
    curves.save(args, "figure1", options | {"results": results}, figure)


if __name__ == "__main__":
    main()
