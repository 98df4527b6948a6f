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
        kept = jnp.where(jnp.arange(losses.size) < examples.count, losses, 0.0)
        return kept.sum() / examples.count.astype(losses.dtype)

    return float(jax.lax.map(of_client, jnp.arange(data.num_clients)).mean())


def main(arguments: list[str] | None = None) -> None:
    args, scale = neural.parse_arguments(__doc__, arguments)
    models = [
        (panel, neural.Trained(source, scale.shown, tau, trial, step))
        for trial in range(scale.trials)
        for tau in scale.taus
        for step in STEPS.get(tau, ())
        for panel, source in enumerate(scale.training)
    ]
    histories = neural.train(args, scale, [model for _, model in models])
    rows = []
    for panel, model in models:
        history, seed = histories[model], args.seed + model.trial
        common = {
            "tau": model.tau, "step": model.step, "trial": model.trial, "panel": PANELS[panel],
            "training_loss": training_loss(scale, history, model.federation(args, scale)),
            "global": 100 * history.final_accuracy,
        }  # fmt: skip
        new = neural.new_clients(scale.new[panel], seed, args.data_dir)
        found = 100 * adapted_accuracies(scale, new, history, seed).mean(axis=1)
        rows += [
            common | {"samples": n, "accuracy": a}
            for n, a in zip(scale.counts, found, strict=True)
        ]
    kind = "_cnn" if args.scale == "cnn" else ""
    file = scripts.results_folder(args) / f"steps{kind}{neural.suffix(args)}.csv"
    pd.DataFrame(rows).to_csv(file, index=False, float_format="%.5g")
    print(table(pd.DataFrame(rows)))


def table(rows: pd.DataFrame) -> str:
    """Table of means over the trials that stayed finite, a star at each tau's step of lowest training loss."""
    head = [
        "new clients",
        "tau",
        "step",
        *sorted(set(rows["samples"])),
        "training loss",
        "global",
        "trials",
    ]
    found = [head]
    best = pages.chosen_steps(rows)
    for (panel, tau, step), rows_of_step in rows.groupby(
        ["panel", "tau", "step"], sort=True
    ):
        chosen = "*" if best[tau] == step else ""
        finite = rows_of_step.dropna(subset="training_loss")
        once, trials = finite.drop_duplicates("trial"), rows_of_step["trial"].nunique()
        cells = [pages.pm(kept["accuracy"], 1) for _, kept in finite.groupby("samples")]
        cells += (
            [pages.pm(once["training_loss"], 4), pages.pm(once["global"], 1)]
            if len(once)
            else []
        )
        cells = cells or ["-"] * (len(head) - 4)
        cells.append(
            trials
            if len(once) == trials
            else f"{trials - len(once)} of {trials} diverged"
        )
        found.append([panel, tau, f"{step:g}{chosen}", *cells])
    return pages.markdown(found)


if __name__ == "__main__":
    main()
