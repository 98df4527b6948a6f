"""Figure 3 of "FedAvg with fine tuning: local updates lead to representation learning", both panels.

    python experiments/fedavg_representation/figure3.py --scale smoke|cpu|full [--results DIR] [--seed N]

The paper shows that D-GD converges to a stationary point of the global loss and FedAvg to none (left, Frobenius norm of
its gradient), but that FedAvg has the smaller error ||B w - B* w*||^2 after fine-tuning on a new client with n samples
(right).

As in the paper: training as in figure 1, M=40 clients; a new client has w* ~ N(0, I_k), x in R^d (the appendix says
R^k), label noise of variance 0.01, and 200 steps of full-batch gradient descent of size 0.01 on B and w from the global
model; 10 end-to-end trials.

Differs: n = 25, 50, 75, 150, 300 (the paper's values are only in its figure); every trial averages over 10 new clients;
the error of fitting the n samples alone (by the solution of smallest norm; not for n = d, where its mean is not finite)
and that of the global model before fine-tuning are drawn too. The paper's error bars are standard deviations, ours the
lowest and the highest trial.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.fedavg_representation.figure1 import (
    CLIENTS,
    DIM,
    METHODS,
    RANK,
    STEP,
    runs,
)
from fedjax_srp.base import named_key
from fedjax_srp.linear import draw_batch

NEW, NOISE_STD = 10, 0.1
SCALES = {  # counts: samples of a new client
    "smoke": {"counts": (50,), "rounds": 10, "trials": 2},
    "cpu": {"counts": (25, 50, 75, 150, 300), "rounds": 250, "trials": 10},
    "full": {"counts": (25, 50, 75, 150, 300, 600), "rounds": 500, "trials": 50},
}
STYLES = {"fine-tuned": "-", "before": ":"}


def tasks(trials: int, seed: int) -> tuple[list, list]:
    """Draw the training clients and the new clients of every trial."""
    keys = jax.random.split(jax.random.key(seed), trials)
    train = []
    new = []
    for key in keys:
        task = srp.data.linear_task(
            key, CLIENTS + NEW, DIM, RANK, NOISE_STD, heads="gaussian"
        )
        train.append(dataclasses.replace(task, heads=task.heads[:CLIENTS]))
        own_key = named_key(task.key, "new")
        new.append(dataclasses.replace(task, heads=task.heads[CLIENTS:], key=own_key))
    return train, new


@scripts.in_double_precision
def adapted(
    label: str, counts: Sequence[int], rounds: int, trials: int, seed: int
) -> dict[str, Any]:
    """Return a method's gradient norms, (trials, rounds), and errors of new clients, (trials, counts)."""
    train, new = tasks(trials, seed)
    histories = runs(train, rounds, METHODS[label][0])
    algorithms = [
        srp.algorithms.LinearFedAvg(train[0], step_size=STEP, fine_tune_samples=samples)
        for samples in counts
    ]
    norms = [history.metrics["gradient_norm"] for history in histories]
    found: dict[str, list] = {"gradient norm": norms, "fine-tuned": [], "before": []}
    for trial, (task, history) in enumerate(zip(new, histories, strict=True)):
        state = history.server_state
        options = {"key": jax.random.key(trial), "evaluations": "all", "devices": 1}
        scores = [srp.evaluate(each, task, state, **options) for each in algorithms]
        for kind, name in {"fine-tuned": "fine_tune", "before": "global"}.items():
            found[kind].append([float(of_count[name].mean()) for of_count in scores])
    return found


@scripts.in_double_precision
def alone(counts: Sequence[int], trials: int, seed: int) -> list[list[float]]:
    """Return the (trials, counts) errors of new clients that fit their own samples without a trained model."""

    def mean_error(task: Any, samples: int) -> float:
        def error(i: jax.Array) -> jax.Array:
            client = task.train_client(i)
            theta = jnp.linalg.lstsq(*draw_batch(client.key, client, samples))[0]
            return jnp.sum((theta - client.representation @ client.head) ** 2)

        return float(jnp.mean(jax.jit(jax.vmap(error))(jnp.arange(task.num_clients))))

    return [[mean_error(task, n) for n in counts] for task in tasks(trials, seed)[1]]


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedavg_representation_figure3", "seed"
    ).parse_args()
    options = SCALES[args.scale]
    counts, rounds, trials = options.values()
    axes = {"label": list(METHODS)}
    found = scripts.measure_each(args, adapted, axes=axes, options=options)
    of_new = {"counts": counts, "trials": trials}
    (own,) = scripts.measure_each(args, alone, options=of_new)
    figure, (left, right) = curves.panels(2)
    results = {}

    def draw(values: Any, label: str, color: str, style: str = "-") -> None:
        options = {"marker": "o", "linestyle": style}
        results[label] = curves.draw_line(right, counts, values, label, color, **options)

    for (label, (_, color)), of_method in zip(METHODS.items(), found, strict=True):
        norms = of_method["gradient norm"]
        results[f"{label}, gradient norm"] = curves.draw_line(
            left, np.arange(1, rounds + 1), norms, label, color
        )
        for kind, style in STYLES.items():
            draw(of_method[kind], f"{label}, {kind}", color, style)
    draw(own, "own samples alone", curves.GREY)
    left.set(
        title="training",
        xlabel="round",
        yscale="log",
        ylabel="norm of the global loss's gradient",
    )
    right.set(
        title="fine-tuning a new client",
        xlabel="samples of the new client",
        xscale="log",
        yscale="log",
    )
    right.set_ylabel(r"error $\|B w - B^* w^*\|^2$")
    curves.ticks_at(right, counts)
    curves.legend(figure, (left, right), 3)
    facts = {"trials": trials, "rounds": rounds, "results": results}
    curves.save(args, "figure3", facts, figure)


if __name__ == "__main__":
    main()
