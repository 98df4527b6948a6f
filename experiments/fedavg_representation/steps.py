"""Search of each method's step size for figure 5, chosen by the training loss as in the paper.

    python experiments/fedavg_representation/steps.py --scale smoke|cpu|cnn|full [--data-dir DIR] [--out DIR]
        [--results DIR] [--batch-size N] [--taus N ...]

The paper tunes the step of training in {0.5, 0.1, 0.05, 0.01, 0.005} and takes "the best that yields the smallest
training loss". In `figure5.py` D-SGD and FedAvg have the same step, 0.1, and momentum, which starts afresh in every
round, lengthens only FedAvg's steps. Here both take the steps of `STEPS`, C is that of figure 2, and new clients train
as in figure 5. Writes `steps.csv` (`steps_cnn.csv` at `--scale cnn`, `steps_batch_N.csv` with `--batch-size N`), a row
for each method, step, trial, panel and number of samples: training loss and accuracy of the trained model on its own
federation, and the mean accuracy of the new clients.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from experiments import pages, scripts
from experiments.fedavg_representation import neural
from experiments.fedavg_representation.figure5 import PANELS, adapted_accuracies
from fedjax_srp.driver.adapt import params_of

STEPS = {
    1: (0.1, 0.2, 0.4, 0.8),
    5: (0.1, 0.2),
    10: (0.05, 0.1, 0.2),
    50: (0.05, 0.1, 0.2),
}  # tau -> steps


def training_loss(scale: neural.Scale, history: Any, data: Any) -> float:
    """Return the mean loss of all training examples; clients have equally many."""
    model, params = neural.model_for(scale, data), params_of(history.server_state)

    def of_client(client: jax.Array) -> jax.Array:
        examples = data.train_client(client)
        losses = model.loss(model.logits(params, examples.x), examples.y)
        kept = jnp.where(examples.valid, losses, 0.0)
        return kept.sum() / examples.count.astype(losses.dtype)

    return float(jax.lax.map(of_client, jnp.arange(data.num_clients)).mean())


def scores_by_samples(
    args: argparse.Namespace, scale: neural.Scale, case: Any, history: Any
) -> list[dict[str, Any]]:
    """Return a model's training loss and accuracy, a row for each number of samples of new clients."""
    trial, tau, step, panel = case
    seed = args.seed + trial
    data = trained(args, scale, case).federation(args, scale)
    common = {
        "tau": tau,
        "step": step,
        "trial": trial,
        "panel": PANELS[panel],
        "training_loss": training_loss(scale, history, data),
        "global": 100 * history.final_accuracy,
    }
    new = neural.new_clients(scale.new[panel], seed, args.data_dir)
    accuracies = 100 * adapted_accuracies(scale, new, history, seed).mean(axis=1)
    return [
        common | {"samples": n, "accuracy": float(accuracy)}
        for n, accuracy in zip(scale.counts, accuracies, strict=True)
    ]


def trained(args: argparse.Namespace, scale: neural.Scale, case: Any) -> neural.Trained:
    """Return the model of a case."""
    trial, tau, step, panel = case
    return neural.Trained(scale.training[panel], scale.shown, tau, trial, step)


def main() -> None:
    args, scale = neural.parse_arguments(__doc__)
    tried = [(tau, step) for tau in scale.taus for step in STEPS.get(tau, ())]
    cases = {}
    for trial, (tau, step), panel in itertools.product(
        range(scale.trials), tried, range(len(PANELS))
    ):
        case = (trial, tau, step, panel)
        cases[case] = trained(args, scale, case)
    found = neural.judge(args, scale, scores_by_samples, cases)
    rows = pd.DataFrame([row for of_case in found.values() for row in of_case])
    rows = rows.astype(dict.fromkeys(("training_loss", "global", "accuracy"), float))
    kind = "_cnn" if args.scale == "cnn" else ""
    file = scripts.results_folder(args) / f"steps{kind}{neural.suffix(args)}.csv"
    rows.to_csv(file, index=False, float_format="%.5g")
    print(table(rows))


def table(rows: pd.DataFrame) -> str:
    """Table of means over the trials that stayed finite, a star at each tau's step of lowest training loss."""
    samples = sorted(set(rows["samples"]))
    head = ["new clients", "tau", "step", *samples, "training loss", "global", "trials"]
    found = [head]
    best = pages.chosen_steps(rows)
    by_step = rows.groupby(["panel", "tau", "step"], sort=True)
    for (panel, tau, step), of_step in by_step:
        chosen = "*" if best[tau] == step else ""
        finite = of_step.dropna(subset="training_loss")
        once = finite.drop_duplicates("trial")
        cells = ["-"] * (len(samples) + 2)
        if len(once):
            scores = [kept["accuracy"] for _, kept in finite.groupby("samples")]
            cells = [pages.pm(accuracies, 1) for accuracies in scores]
            cells += [pages.pm(once["training_loss"], 4), pages.pm(once["global"], 1)]
        trials = of_step["trial"].nunique()
        diverged = trials - len(once)
        cells.append(f"{diverged} of {trials} diverged" if diverged else trials)
        found.append([panel, tau, f"{step:g}{chosen}", *cells])
    return pages.markdown(found)


if __name__ == "__main__":
    main()
