"""Mini-batch SGD of one client in the papers' experiments, and the server's mean, in NumPy."""

from typing import NamedTuple

import numpy as np
from reference import mlp


class Sgd(NamedTuple):
    """w <- w - step * buffer, buffer <- momentum * buffer + gradient + decay * w; no decay on biases."""

    step: float
    momentum: float = 0.0
    decay: float = 0.0


def batches(orders, batch_size):
    """Batches of every epoch, given the order of its examples; an epoch's last batch may be smaller."""
    for order in orders:
        for begin in range(0, len(order), batch_size):
            yield order[begin : begin + batch_size]


def no_momentum(params, trained):
    """Momentum before the first step, of the layers named `trained`."""
    return combine(np.zeros_like, {name: params[name] for name in trained})


def train(
    params, trained, x, y, rows_of_steps, sgd, gradient_of=mlp.gradient, buffers=None
):
    """One step per entry of `rows_of_steps` on the layers named `trained`; the others are frozen.

    `buffers` is the momentum of earlier steps, which the new steps change in place; None: there were none.
    """
    params = combine(np.copy, params)
    buffers = no_momentum(params, trained) if buffers is None else buffers
    for rows in rows_of_steps:
        gradient = gradient_of(params, x[rows], y[rows])
        for name in trained:
            for part, w in params[name].items():
                direction = gradient[name][part] + (
                    sgd.decay * w if part == "kernel" else 0.0
                )
                buffers[name][part] = sgd.momentum * buffers[name][part] + direction
                params[name][part] = w - sgd.step * buffers[name][part]
    return params


def combine(function, *models):
    """`function` of the arrays of several models, or of parts of models, layer by layer."""
    return {
        name: {
            part: function(*(m[name][part] for m in models)) for part in models[0][name]
        }
        for name in models[0]
    }


def towards(centre, penalty):
    """The gradient of the loss + (penalty / 2) |w - centre|^2."""

    def gradient(w, x, y):
        return combine(
            lambda g, w, c: g + penalty * (w - c), mlp.gradient(w, x, y), w, centre
        )

    return gradient


def mean(models, weights):
    """Weighted mean of models or parts of models, layer by layer."""
    return combine(
        lambda *arrays: (
            sum(w * a for w, a in zip(weights, arrays, strict=True)) / sum(weights)
        ),
        *models,
    )


def weight(client_weighting, client):
    """1 for "uniform", the client's number of training examples for "num_examples"."""
    return {"uniform": 1.0, "num_examples": float(len(client.y))}[client_weighting]
