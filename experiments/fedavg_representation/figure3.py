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
SCALES = {  # samples of a new client, rounds, trials
    "smoke": ((50,), 10, 2),
    "cpu": ((25, 50, 75, 150, 300), 250, 10),
    "full": ((25, 50, 75, 150, 300, 600), 500, 50),
}


def local_only_error(task, samples: int) -> float:
    """Mean error of new clients that fit their own samples without a trained model."""

    def error(i):
        client = task.train_client(i)
        theta = jnp.linalg.lstsq(*draw_batch(client.key, client, samples))[0]
        return jnp.sum((theta - client.representation @ client.head) ** 2)

    return float(jnp.mean(jax.jit(jax.vmap(error))(jnp.arange(task.num_clients))))


def run(args, counts: tuple[int, ...], rounds: int, trials: int) -> None:
    keys = jax.random.split(jax.random.key(args.seed), trials)
    every = [
        srp.data.linear_task(key, CLIENTS + NEW, DIM, RANK, NOISE_STD, heads="gaussian")
        for key in keys
    ]
    train = [dataclasses.replace(task, heads=task.heads[:CLIENTS]) for task in every]
    new = [
        dataclasses.replace(
            task, heads=task.heads[CLIENTS:], key=named_key(task.key, "new")
        )
        for task in every
    ]
    algorithms = [
        srp.algorithms.LinearFedAvg(train[0], step_size=STEP, fine_tune_samples=n)
        for n in counts
    ]
    figure, (left, right) = curves.panels(2)
    results = {}

    def draw(label: str, errors: np.ndarray, color: str, **style) -> None:
        results[label] = curves.draw_line(
            right, counts, errors, label, color, marker="o", **style
        )

    for label, (local_steps, color) in METHODS.items():
        histories = runs(
            srp.algorithms.LinearFedAvg(
                train[0], step_size=STEP, local_steps=local_steps
            ),
            train,
            rounds,
        )
        norm = np.array([history.metrics["gradient_norm"] for history in histories])
        results[f"{label}, gradient norm"] = curves.draw_line(
            left, np.arange(1, rounds + 1), norm, label, color
        )

        errors = {
            "fine_tune": np.empty((trials, len(counts))),
            "global": np.empty((trials, len(counts))),
        }
        for i, algorithm in enumerate(algorithms):
            for trial, (task, run) in enumerate(zip(new, histories, strict=True)):
                options = {
                    "key": jax.random.key(trial),
                    "evaluations": "all",
                    "devices": 1,
                }
                for name, scores in srp.evaluate(
                    algorithm, task, run.server_state, **options
                ).items():
                    errors[name][trial, i] = scores.mean()
        draw(f"{label}, fine-tuned", errors["fine_tune"], color, linestyle="-")
        draw(f"{label}, before", errors["global"], color, linestyle=":")
    alone = np.array([[local_only_error(task, n) for n in counts] for task in new])
    draw("own samples alone", alone, curves.GREY, linestyle="-")

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
    right.set_xticks(counts, counts)
    right.set_xticks([], minor=True)
    curves.legend(figure, (left, right), 3)
    curves.save(
        args, "figure3", {"trials": trials, "rounds": rounds, "results": results}, figure
    )


def main() -> None:
    args = scripts.parser(
        __doc__, SCALES, "runs/fedavg_representation_figure3", "seed"
    ).parse_args()
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # as in figure 1
        run(args, *SCALES[args.scale])


if __name__ == "__main__":
    main()
