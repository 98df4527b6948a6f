"""Figure 4 of "FedAvg with fine tuning: local updates lead to representation learning".

    python experiments/fedavg_representation/figure4.py --scale smoke|cpu|full [--data-dir DIR] [--results DIR]

The paper shows that in models trained by FedAvg the features of images of one class are similar and those of different
classes are not, the more so the more local steps, while in a model trained by D-SGD no features are similar.

As in the paper: classes divided among 100 clients by Dirichlet(0.6); features are the input of the output layer; the
mean absolute cosine over 25 pairs of test images, the j-th of one class with the j-th of the other.

Differs: see `neural.py`. The formula as printed compares the images of a class with themselves, which gives 1 on the
diagonal; here the two images of a pair are different, 25 of each class against 25 others. Clients keep all their
images, 500 (`cpu`: 600) in the mean. An untrained model is drawn too.
Results have means over the diagonal, over the other entries, their difference, and the accuracy of the model itself.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np

from experiments import curves
from experiments.fedavg_representation import neural
from experiments.fedavg_representation.similarity import activations, mean_cosines
from fedjax_srp.data import FederatedData
from fedjax_srp.driver.adapt import params_of
from fedjax_srp.models import SplitModel, SplitParams


def cosines(
    model: SplitModel, params: SplitParams, data: FederatedData, pairs: int
) -> np.ndarray:
    """Return (classes, classes) mean absolute cosines of the features of test images.

    Raises:
        ValueError: a class has fewer than 2 * pairs test images.
    """
    labels = np.asarray(data.y_test)
    of_class = [
        np.flatnonzero(labels == label)[: 2 * pairs] for label in range(data.num_classes)
    ]
    if min(map(len, of_class)) < 2 * pairs:
        raise ValueError(
            f"pairs={pairs}: a class of {data.name!r} has fewer than {2 * pairs} test images; give fewer"
        )
    x = data.model_input(data.x_test[np.concatenate(of_class)])
    features = list(activations(model, params, x).values())[-1].reshape(
        data.num_classes, 2 * pairs, -1
    )
    return mean_cosines(features[:, :pairs], features[:, pairs:])


def cosines_of_model(
    args: argparse.Namespace, scale: neural.Scale, case: Any, history: Any
) -> dict[str, Any]:
    """Return the cosines of a model, and its accuracy."""
    seed = args.seed + case[1]
    data = neural.federation(scale.dirichlet, seed, args.data_dir, alpha=neural.ALPHA)
    model, params = neural.initial_model(scale, None, data, seed)
    found = {}
    if history is not None:
        params = params_of(history.server_state)
        found["global"] = 100 * history.final_accuracy
    return found | {"matrix": cosines(model, params, data, scale.pairs)}


def main() -> None:
    args, scale = neural.parse_arguments(__doc__)
    scale = scale._replace(steps=args.steps or scale.cosine_steps)
    taus = (0, *scale.cosine_taus)
    cases = {
        (tau, trial): neural.Trained(scale.dirichlet, None, tau, trial, args.step_size)
        for tau, trial in itertools.product(taus, range(scale.trials))
    }
    found = neural.judge(args, scale, cosines_of_model, cases)
    figure, axes = curves.panels(len(taus), width=2.7, height=3.2, sharey=True)
    results, image = {}, None
    for ax, tau in zip(axes, taus, strict=True):
        of_trials = [found[tau, trial] for trial in range(scale.trials)]
        matrices = np.array([trial["matrix"] for trial in of_trials])
        is_same = np.eye(len(matrices[0]), dtype=bool)
        same = matrices[:, is_same].mean(axis=1)
        different = matrices[:, ~is_same].mean(axis=1)
        row = {
            "matrix": matrices.mean(axis=0),
            "same class": curves.spread(same),
            "different classes": curves.spread(different),
            "difference": curves.spread(same - different),
        }
        if tau:
            row["global"] = curves.spread([trial["global"] for trial in of_trials])
        name = neural.method_label(tau)
        results[name] = curves.rounded(row)
        image = ax.imshow(row["matrix"], vmin=0, vmax=1, cmap="viridis")
        ax.grid(visible=False)
        ticks = range(0, len(is_same), 3)
        ax.set(title=name, xlabel="class", xticks=ticks, yticks=ticks)
    axes[0].set_ylabel("class")
    figure.colorbar(image, ax=axes, shrink=0.8, label="mean |cosine| of features")
    facts = {"trials": scale.trials, "steps": scale.steps, "results": results}
    curves.save(args, neural.file_name(args, "figure4"), facts, figure)


if __name__ == "__main__":
    main()
