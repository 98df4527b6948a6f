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

import argparse
import itertools
from typing import Any

import jax
import numpy as np

from experiments import curves
from experiments.fedavg_representation import neural
from experiments.fedavg_representation.similarity import activations, linear_cka


def layer_changes(
    args: argparse.Namespace, scale: neural.Scale, case: Any, history: Any
) -> dict[str, Any]:
    """Return the CKA of each layer before and after fine-tuning, and the accuracy after it, means over new clients."""
    seed = args.seed + case[1]
    new = neural.new_clients(scale.new[1], seed, args.data_dir, scale.brightness)
    data = neural.subsampled(new, scale.counts[-1:], seed)
    model, start = neural.initial_model(scale, history, data, seed)
    similarity: dict[str, list[float]] = {}
    accuracy = []
    predict = jax.jit(model.logits)
    for client, tuned in enumerate(neural.fine_tune(model, start, data, seed)):
        test = data.test_client(jax.numpy.int32(client))
        x, y = test.x[: int(test.count)], np.asarray(test.y[: int(test.count)])
        accuracy.append(np.mean(np.argmax(predict(tuned, x), 1) == y))
        before, after = (
            activations(model, params, x[: scale.images]) for params in (start, tuned)
        )
        for layer, outputs in before.items():
            cka = linear_cka(outputs, after[layer])
            similarity.setdefault(layer, []).append(cka)
    means = {layer: float(np.mean(values)) for layer, values in similarity.items()}
    return {"similarity": means, "accuracy": 100 * float(np.mean(accuracy))}


def main() -> None:
    args, scale = neural.parse_arguments(__doc__)
    taus = (*scale.taus, 0)
    source, shown, step = scale.training[1], scale.shown, args.step_size
    cases = {
        (tau, trial): neural.Trained(source, shown, tau, trial, step)
        for tau, trial in itertools.product(taus, range(scale.trials))
    }
    found = neural.judge(args, scale, layer_changes, cases)
    figure, (ax,) = curves.panels(1, width=6.0)
    results = {}
    for tau in taus:
        of_trials = [found[tau, trial] for trial in range(scale.trials)]
        layers = list(of_trials[0]["similarity"])
        values = [list(trial["similarity"].values()) for trial in of_trials]
        name = neural.method_label(tau)
        color, style = neural.line_of(scale.taus, tau)
        places = np.arange(len(layers))
        results[name] = curves.draw_line(ax, places, values, name, color, **style)
        results[name]["x"] = layers
        accuracy = curves.spread([trial["accuracy"] for trial in of_trials])
        results[name]["accuracy"] = curves.rounded(accuracy)
    ax.set_xticks(places, layers)
    ax.set(ylabel="CKA before and after fine-tuning", ylim=(None, 1.02))
    curves.legend(figure, ax, 2)
    facts = {"trials": scale.trials, "steps": scale.steps, "results": results}
    curves.save(args, neural.file_name(args, "figure2"), facts, figure)


if __name__ == "__main__":
    main()
