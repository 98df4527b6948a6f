"""DepthFL and the sliding window in NumPy: a client's layers and classifiers are cut out, trained, and put back.

Parameters are those of an MLP and of its classifiers, `{layer: {"kernel", "bias"}}`; a classifier that stands after a
layer is called "exit LAYER", the model's own one as its last layer.
"""

import numpy as np
from reference import mlp
from reference.local import combine, train


def weight_of_others(distillation, round, ramp_rounds):
    """Weight of the divergence in a round, as in the authors' code."""
    phase = 1.0 - np.clip(round, 0.0, ramp_rounds) / ramp_rounds
    return distillation * float(np.exp(-5.0 * phase * phase))


def gradient_of(hidden, classifiers, weight=0.0):
    """Return the gradient of a client's loss: cross-entropies, and divergences between the classifiers.

    `hidden` are the layers that run, `classifiers` maps each classifier to the number of layers below it.
    """

    def gradient(params, x, y):
        outputs = [x.reshape(len(x), -1)]
        for name in hidden:
            layer = params[name]
            outputs.append(np.maximum(outputs[-1] @ layer["kernel"] + layer["bias"], 0))
        logits = {
            name: outputs[depth] @ params[name]["kernel"] + params[name]["bias"]
            for name, depth in classifiers.items()
        }
        p = {name: np.exp(mlp.log_probabilities(z)) for name, z in logits.items()}
        found = combine(np.zeros_like, params)
        at = [np.zeros_like(output) for output in outputs]
        for name, depth in classifiers.items():
            delta = mlp.at_logits(logits[name], y)
            for other in classifiers:
                if other != name:
                    share = weight / (len(classifiers) - 1)
                    delta = delta + share * (p[name] - p[other]) / len(y)
            found[name] = {"kernel": outputs[depth].T @ delta, "bias": delta.sum(axis=0)}
            at[depth] += delta @ params[name]["kernel"].T
        for depth in range(len(hidden), 0, -1):
            delta = at[depth] * (outputs[depth] > 0)
            name = hidden[depth - 1]
            found[name] = {
                "kernel": outputs[depth - 1].T @ delta,
                "bias": delta.sum(axis=0),
            }
            at[depth - 1] += delta @ params[name]["kernel"].T
        return found

    return gradient


def of_depth(ends, hidden, last, blocks):
    """Return the hidden layers, and the classifiers with the layers below each, of the first blocks."""
    depths = [hidden.index(end) + 1 for end in ends] + [len(hidden)]
    names = [f"exit {end}" for end in ends] + [last]
    classifiers = dict(zip(names[:blocks], depths[:blocks], strict=True))
    return hidden[: depths[blocks - 1]], classifiers


def depth_client(params, ends, hidden, last, blocks, weight, x, y, rows, sgd):
    """The first blocks of a model after a DepthFL client's training."""
    layers, classifiers = of_depth(ends, hidden, last, blocks)
    mine = [*layers, *classifiers]
    gradient = gradient_of(layers, classifiers, weight)
    small = {name: params[name] for name in mine}
    return train(small, mine, x, y, rows, sgd, gradient)


def window_client(params, ends, hidden, last, first, blocks, x, y, rows, sgd):
    """What a client with the window of `blocks` blocks from `first` on has trained."""
    layers, classifiers = of_depth(ends, hidden, last, first + blocks)
    below = of_depth(ends, hidden, last, first)[0] if first else []
    [(classifier, depth)] = [*classifiers.items()][-1:]
    mine = [name for name in layers if name not in below] + [classifier]
    small = {name: params[name] for name in [*layers, classifier]}
    gradient = gradient_of(layers, {classifier: depth})
    trained = train(small, mine, x, y, rows, sgd, gradient)
    return {name: trained[name] for name in mine}


def averaged(params, parts, weights):
    """Each layer's mean over the clients that have it; without clients as it was."""
    found = {}
    for name, layer in params.items():
        mine = [
            (part[name], w)
            for part, w in zip(parts, weights, strict=True)
            if name in part
        ]
        found[name] = layer
        if mine:
            found[name] = {
                leaf: sum(w * part[leaf] for part, w in mine) / sum(w for _, w in mine)
                for leaf in layer
            }
    return found
