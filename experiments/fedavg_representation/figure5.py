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

import argparse
import itertools
from typing import Any

import jax
import numpy as np

import fedjax_srp as srp
from experiments import curves
from experiments.fedavg_representation import neural
from experiments.fedavg_representation.neural import FINE_TUNE_EPOCHS, Scale

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


def adapted(
    args: argparse.Namespace, scale: Scale, case: Any, history: Any
) -> dict[str, Any]:
    """Return the accuracies of new clients, and that of the model on its own federation."""
    panel, trial, _, _ = case
    seed = args.seed + trial
    brightness = scale.brightness if panel else 1.0
    new = neural.new_clients(scale.new[panel], seed, args.data_dir, brightness)
    own = None if history is None else history.final_accuracy
    return {"new": adapted_accuracies(scale, new, history, seed), "global": own}


def main() -> None:
    args, scale = neural.parse_arguments(__doc__)
    # brightness does not change the panel of new classes
    panels = (0, 1) if scale.brightness == 1 else (1,)
    trials = range(scale.trials)
    trained = list(itertools.product(scale.num_classes, scale.taus))
    cases = {
        (panel, trial, c, tau): neural.Trained(
            scale.training[panel], c, tau, trial, args.step_size
        )
        for panel, trial, (c, tau) in itertools.product(
            panels, trials, [(0, 0), *trained]
        )
    }
    found = neural.judge(args, scale, adapted, cases)
    size = len(scale.num_classes), 3.6, 0.8 + 2.8 * len(panels), len(panels)
    figure, axes = curves.panels(*size, sharex=True, sharey="row")
    axes = np.atleast_2d(axes)
    results: dict[str, Any] = {}
    for of_panel, panel in zip(axes, panels, strict=True):
        title = PANELS[panel]
        results[title] = {}
        for ax, shown in zip(of_panel, scale.num_classes, strict=True):
            rows = results[title].setdefault(f"C={shown}", {})
            for tau in (0, *scale.taus):
                c = shown if tau else 0
                of_trials = [found[panel, trial, c, tau] for trial in trials]
                values = 100 * np.array([trial["new"] for trial in of_trials])
                name = neural.method_label(tau)
                color, style = neural.line_of(scale.taus, tau)
                rows[name] = curves.draw_line(
                    ax, scale.counts, values.mean(-1), name, color, **style
                )
                rows[name]["std"] = curves.rounded(values.std(axis=(0, 2)))
                if tau:
                    own = curves.spread([100 * trial["global"] for trial in of_trials])
                    rows[name]["global"] = curves.rounded(own)
            ax.set(title=f"{title}, C = {shown}", xscale="log")
            curves.ticks_at(ax, scale.counts)
        of_panel[0].set_ylabel("test accuracy, %")
    for ax in axes[-1]:
        ax.set_xlabel("samples of a new client")
    curves.legend(figure, axes[0, 0], 4)
    facts = {"trials": scale.trials, "steps": scale.steps, "results": results}
    curves.save(args, neural.file_name(args, "figure5"), facts, figure)


if __name__ == "__main__":
    main()
