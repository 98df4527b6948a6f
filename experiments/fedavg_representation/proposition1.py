"""Proposition 1 of "FedAvg with fine tuning: local updates lead to representation learning".

    python experiments/fedavg_representation/proposition1.py --scale smoke|cpu|full [--results DIR] [--seed N]

For any heads, start B0, distance delta_0 in (0, 1/2] and step size, there is a B* at distance delta_0 from B0, with the
mean model B* mean(w_i*) in the span of B0, from which D-GD (one local update) stays at 0.7 delta_0 or more. The proof
takes any such B*, and its mirror image at the same distance, for which D-GD cannot differ. Both are made here, and
D-GD and FedAvg run from B0 towards each: population losses in double precision, d=100, k=5, M=40, w at 0, all clients
in every round, as in figure 1, whose rounds and trials these are. Beside the paper's Gaussian heads and step of 0.4: a
smaller delta_0, a smaller step, heads that hardly differ, and a B* at distance delta_0 in all k directions, for which
the mean model is not in the span of B0.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import curves
from experiments.fedavg_representation.figure1 import (
    METHODS,
    SCALES,
    STEP,
    runs,
    scripts,
    tasks,
)
from fedjax_srp.linear import orthonormalize

PLAIN = {"distance": 0.5, "step": STEP, "spread": 1.0, "within": True}
SETTINGS = {  # delta_0, step size, spread of the heads around their mean, mean model in the span of B0
    "delta_0 = 0.5": PLAIN,
    "delta_0 = 0.1": PLAIN | {"distance": 0.1},
    "step 0.1": PLAIN | {"step": STEP / 4},
    "heads a tenth as far from their mean": PLAIN | {"spread": 0.1},
    "mean model outside": PLAIN | {"within": False},
}


def truths(
    b0: jax.Array, mean_head: jax.Array, distance: float, within: bool, key: jax.Array
) -> list[jax.Array]:
    """Return the B* of the proof and its mirror image B*', (d, k) each, for a start and the mean of the heads.

    Unless `within`, the first direction, that of the mean model, leaves the span of B0 like the others.
    """
    basis = orthonormalize(b0)
    shared, inside = (
        basis[:, : int(within)],
        basis[:, int(within) :],
    )  # B* mean(w*) / |mean(w*)|, and B0 tilde
    other = jax.random.normal(key, inside.shape)
    outside = orthonormalize(other - basis @ (basis.T @ other))
    # [mean(w*) / |mean(w*)|, V tilde] is an orthonormal basis of R^k
    rest = jnp.eye(len(mean_head))[:, : len(mean_head) - 1]
    head = orthonormalize(jnp.concatenate([mean_head[:, None], rest], axis=1))
    tilted = [
        math.sqrt(1 - distance**2) * inside + sign * distance * outside
        for sign in (1, -1)
    ]
    return [jnp.concatenate([shared, part], axis=1) @ head.T for part in tilted]


def drawn_tasks(
    step: float, trials: int, seed: int, distance: float, spread: float, within: bool
) -> list[tuple]:
    """Return for every trial the tasks of B* and B*', for the B0 from which `simulate` starts with the trial's key."""
    found = []
    algorithm = srp.algorithms.LinearFedAvg(tasks(1, seed)[0], step_size=step)
    for trial, task in enumerate(tasks(trials, seed)):
        mean = task.heads.mean(axis=0)
        task = dataclasses.replace(
            task, heads=mean[None] + spread * (task.heads - mean[None])
        )
        key = srp.named_key(srp.named_key(jax.random.key(trial), "server"), "init")
        start = algorithm.init(key, task).representation
        both = truths(start, mean, distance, within, srp.named_key(task.key, "outside"))
        found.append(
            tuple(dataclasses.replace(task, representation=truth) for truth in both)
        )
    return found


@scripts.in_double_precision
def measure(
    distance: float,
    step: float,
    spread: float,
    within: bool,
    rounds: int,
    trials: int,
    seed: int,
) -> dict:
    """Return the last distances over the first, the worse of B* and B*' in every trial, and the lowest of all."""
    found = {}
    drawn = drawn_tasks(step, trials, seed, distance, spread, within)
    for label, (local_steps, _) in METHODS.items():
        of_sides = []
        for side in zip(*drawn, strict=True):
            histories = runs(list(side), rounds, local_steps, step)
            of_sides.append([history.metrics["distance"] for history in histories])
        ratio = np.array(of_sides) / distance
        worse = ratio[:, :, -1].max(axis=0)
        found[label] = {**curves.spread(worse), "of any round": ratio.min()}
    return curves.rounded(found)


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedavg_representation_proposition1", "seed"
    ).parse_args()
    options = SCALES[args.scale]
    found = scripts.measure_each(args, measure, variants=SETTINGS, options=options)
    results = dict(zip(SETTINGS, found, strict=True))
    curves.save(args, "proposition1", options | {"results": results})


if __name__ == "__main__":
    main()
