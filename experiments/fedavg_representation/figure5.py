"""Figure 5 of "FedAvg with fine tuning: local updates lead to representation learning".

    python experiments/fedavg_representation/figure5.py --scale smoke|cpu|full [--data-dir DIR] [--results DIR]

The paper shows that models trained by FedAvg with tau = 50 have a higher accuracy than models trained by D-SGD on new
clients that train all layers for 10 epochs on some samples: on new classes of the training data (left) and on another
data set (right), for several numbers C of classes of a training client.

As in the paper: C classes a training client with equally many samples of each, five new clients a trial with samples of
all new classes, equally many of each up to one, evaluated on their test images.

Differs: see `neural.py`; C and the numbers of samples are ours, because the paper has them in its figure only; bands
are the lowest and the highest trial, each the mean over its new clients, and the results also have the paper's standard
deviation over trials and clients. A model from a random start is drawn too. `global` in the results is the accuracy of
each trained model itself on its own federation.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

import fedjax_srp as srp
from experiments import curves
from experiments.fedavg_representation import neural
from experiments.fedavg_representation.neural import FINE_TUNE_EPOCHS, RANDOM, Scale

PANELS = ("new classes", "new data set")


def adapted_accuracies(scale: Scale, new: Any, history: Any, seed: int) -> np.ndarray:
    """Return (counts, new clients) accuracies after fine-tuning."""
    data = neural.subsampled(new, scale.counts, seed)
    model, start = neural.initial_model(scale, history, data, seed)
    found = srp.adapt(
        model, data, start, key=jax.random.key(seed), part="all", epochs=FINE_TUNE_EPOCHS,
        optimizer=neural.optimizer(), batch_size=neural.BATCH,
    )  # fmt: skip
    return found.scores[0, -1].reshape(len(scale.counts), new.num_clients)


def main(arguments: list[str] | None = None) -> None:
    args, scale = neural.parse_arguments(__doc__, arguments)
    rows = (
        (0, 1) if scale.brightness == 1 else (1,)
    )  # brightness does not change the panel of new classes
    size = len(scale.num_classes), 3.6, 0.8 + 2.8 * len(rows), len(rows)
    figure, axes = curves.panels(*size, sharex=True, sharey="row")
    axes = np.atleast_2d(axes)
    results: dict[str, Any] = {}
    trained = {
        (row, tau, c, trial): neural.Trained(
            scale.training[row], c, tau, trial, args.step_size
        )
        for row, tau, c, trial in itertools.product(
            rows, scale.taus, scale.num_classes, range(scale.trials)
        )
    }
    histories = neural.train(args, scale, trained.values())
    for place, row in enumerate(rows):
        title = PANELS[row]
        accuracy: dict[tuple, np.ndarray] = {}
        overall: dict[tuple, np.ndarray] = {}
        cases = [(RANDOM, 0, 0)] + [
            (neural.method_label(tau), tau, c)
            for c in scale.num_classes
            for tau in scale.taus
        ]
        for trial in range(scale.trials):
            seed = args.seed + trial
            new = neural.new_clients(
                scale.new[row], seed, args.data_dir, scale.brightness if row else 1.0
            )
            for case in cases:
                _, tau, c = case
                history = histories[trained[row, tau, c, trial]] if tau else None
                shape = scale.trials, len(scale.counts), new.num_clients
                accuracy.setdefault(case, np.empty(shape))[trial] = adapted_accuracies(
                    scale, new, history, seed
                )
                if history is not None:
                    overall.setdefault(case, np.empty(scale.trials))[trial] = (
                        history.final_accuracy
                    )
            print(f"{title}: trial {trial + 1} of {scale.trials} done", flush=True)
        for column, shown in enumerate(scale.num_classes):
            ax = axes[place, column]
            found = results.setdefault(title, {}).setdefault(f"C={shown}", {})
            for name, tau, c in cases:
                if tau and c != shown:
                    continue
                values = 100 * accuracy[name, tau, c]
                color = neural.COLORS[scale.taus.index(tau)] if tau else curves.GREY
                style = {"marker": "o"} | ({} if tau else {"linestyle": ":"})
                found[name] = curves.draw_line(
                    ax, scale.counts, values.mean(-1), name, color, **style
                )
                found[name]["std"] = curves.rounded(values.std(axis=(0, 2)))
                if tau:
                    of_trials = curves.spread(100 * overall[name, tau, c])
                    found[name]["global"] = curves.rounded(of_trials)
            ax.set(title=f"{title}, C = {shown}", xscale="log")
            ax.set_xticks(scale.counts, scale.counts)
            ax.set_xticks([], minor=True)
        axes[place, 0].set_ylabel("test accuracy, %")
    for ax in axes[-1]:
        ax.set_xlabel("samples of a new client")
    curves.legend(figure, axes[0, 0], 4)
    facts = {"trials": scale.trials, "steps": scale.steps, "results": results}
    curves.save(args, neural.file_name(args, "figure5"), facts, figure)


if __name__ == "__main__":
    main()
