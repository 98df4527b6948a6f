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

import itertools

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


def main(arguments: list[str] | None = None) -> None:
    args, scale = neural.parse_arguments(__doc__, arguments)
    scale = scale._replace(steps=args.steps or scale.cosine_steps)
    found: dict[str, list[np.ndarray]] = {}
    accuracy: dict[str, list[float]] = {}
    models = {
        (trial, tau): neural.Trained(scale.dirichlet, None, tau, trial, args.step_size)
        for trial, tau in itertools.product(range(scale.trials), scale.cosine_taus)
    }
    histories = neural.train(args, scale, models.values())
    for trial in range(scale.trials):
        seed = args.seed + trial
        data = neural.federation(scale.dirichlet, seed, args.data_dir, alpha=neural.ALPHA)
        model, start = neural.initial_model(scale, None, data, seed)
        found.setdefault(neural.RANDOM, []).append(
            cosines(model, start, data, scale.pairs)
        )
        for tau in scale.cosine_taus:
            history = histories[models[trial, tau]]
            matrix = cosines(model, params_of(history.server_state), data, scale.pairs)
            found.setdefault(neural.method_label(tau), []).append(matrix)
            accuracy.setdefault(neural.method_label(tau), []).append(
                100 * history.final_accuracy
            )
        print(f"trial {trial + 1} of {scale.trials} done", flush=True)

    figure, axes = curves.panels(len(found), width=2.7, height=3.2, sharey=True)
    results, image = {}, None
    for ax, (name, matrices) in zip(axes, found.items(), strict=True):
        other = ~np.eye(len(matrices[0]), dtype=bool)
        same, different = (
            np.array([m[rows].mean() for m in matrices]) for rows in (~other, other)
        )
        found_here = {
            "matrix": np.mean(matrices, 0),
            "same class": curves.spread(same),
            "different classes": curves.spread(different),
            "difference": curves.spread(same - different),
        }
        if name in accuracy:
            found_here["global"] = curves.spread(accuracy[name])
        results[name] = curves.rounded(found_here)
        image = ax.imshow(np.mean(matrices, 0), vmin=0, vmax=1, cmap="viridis")
        ax.grid(visible=False)
        ax.set(
            title=name,
            xlabel="class",
            xticks=range(0, len(other), 3),
            yticks=range(0, len(other), 3),
        )
    axes[0].set_ylabel("class")
    figure.colorbar(image, ax=axes, shrink=0.8, label="mean |cosine| of features")
    facts = {"trials": scale.trials, "steps": scale.steps, "results": results}
    curves.save(args, neural.file_name(args, "figure4"), facts, figure)


if __name__ == "__main__":
    main()
