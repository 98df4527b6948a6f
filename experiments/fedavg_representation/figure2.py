"""Figure 2 of "FedAvg with fine tuning: local updates lead to representation learning".

    python experiments/fedavg_representation/figure2.py --scale smoke|cpu|full [--data-dir DIR] [--results DIR]

The paper shows that the early layers of a model trained by FedAvg change little when it is fine-tuned on another data
set, and those of a model trained by D-SGD much more: linear CKA of the outputs of each layer before and after, for the
same images.

As in the paper: 5 classes a training client (`cpu`: 4), fine-tuning of all layers for 10 epochs on a new client.

Differs: see `neural.py`. The paper does not say how many samples fine-tuning takes (here the most of figure 5), nor on
how many images CKA is computed (here the first 500 test images of the new client); every trial is the mean over its new
clients. The output layer is left out, because it starts afresh. A model from a random start is drawn too: its layers
may also change little, so similarity alone does not show a good representation. The results also have the accuracy
after fine-tuning.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np

from experiments import curves
from experiments.fedavg_representation import neural
from experiments.fedavg_representation.similarity import activations, linear_cka
from fedjax_srp.data import FederatedData
from fedjax_srp.models import SplitModel, SplitParams


def measure_changes(
    model: SplitModel, start: SplitParams, data: FederatedData, seed: int, images: int
) -> tuple[dict[str, float], float]:
    """Return the CKA of each layer before and after fine-tuning, and the accuracy after it, means over new clients."""
    found: dict[str, list[float]] = {}
    accuracy = []
    predict = jax.jit(model.logits)
    for client, tuned in enumerate(neural.fine_tune(model, start, data, seed)):
        test = data.test_client(jax.numpy.int32(client))
        x, y = test.x[: int(test.count)], np.asarray(test.y[: int(test.count)])
        accuracy.append(np.mean(np.argmax(predict(tuned, x), 1) == y))
        before, after = (
            activations(model, params, x[:images]) for params in (start, tuned)
        )
        for layer, outputs in before.items():
            found.setdefault(layer, []).append(linear_cka(outputs, after[layer]))
    return {layer: float(np.mean(values)) for layer, values in found.items()}, float(
        np.mean(accuracy)
    )


def main(arguments: list[str] | None = None) -> None:
    args, scale = neural.parse_arguments(__doc__, arguments)
    similarity: dict[str, list[list[float]]] = {}
    accuracy: dict[str, list[float]] = {}
    layers: list[str] = []
    models = {
        (trial, tau): neural.Trained(
            scale.training[1], scale.shown, tau, trial, args.step_size
        )
        for trial, tau in itertools.product(range(scale.trials), scale.taus)
    }
    histories = neural.train(args, scale, models.values())
    for trial in range(scale.trials):
        seed = args.seed + trial
        new = neural.subsampled(
            neural.new_clients(scale.new[1], seed, args.data_dir, scale.brightness),
            scale.counts[-1:],
            seed,
        )
        for tau in (*scale.taus, None):
            history = histories[models[trial, tau]] if tau else None
            name = neural.method_label(tau) if tau else neural.RANDOM
            model, start = neural.initial_model(scale, history, new, seed)
            found, right = measure_changes(model, start, new, seed, scale.images)
            layers = list(found)
            similarity.setdefault(name, []).append(list(found.values()))
            accuracy.setdefault(name, []).append(100 * right)
        print(f"trial {trial + 1} of {scale.trials} done", flush=True)

    figure, (ax,) = curves.panels(1, width=6.0)
    results = {}
    for name, color in zip(
        similarity, (*neural.COLORS[: len(scale.taus)], curves.GREY), strict=True
    ):
        style = {"marker": "o"} | ({"linestyle": ":"} if name == neural.RANDOM else {})
        results[name] = curves.draw_line(
            ax, np.arange(len(layers)), similarity[name], name, color, **style
        )
        results[name]["x"] = layers
        results[name]["accuracy"] = curves.rounded(curves.spread(accuracy[name]))
    ax.set_xticks(range(len(layers)), layers)
    ax.set(ylabel="CKA before and after fine-tuning", ylim=(None, 1.02))
    curves.legend(figure, ax, 2)
    facts = {"trials": scale.trials, "steps": scale.steps, "results": results}
    curves.save(args, neural.file_name(args, "figure2"), facts, figure)


if __name__ == "__main__":
    main()
