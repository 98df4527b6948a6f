"""FedBN (Li et al., 2021), SiloBN (Andreux et al., 2020) and FedAvg with BatchNorm, in NumPy.

The model is a dense layer without bias, BatchNorm, ReLU and a dense layer: `{"fc": {"kernel"}, "norm": {"scale",
"bias", "mean", "var"}, "out": {"kernel", "bias"}}`. In training a batch is normalised by its own mean and (biased)
variance, through which gradients flow, and the running ones take a share of 1 - RATE of them.
"""

from typing import NamedTuple

import numpy as np
from reference.local import mean, weight
from reference.mlp import log_probabilities

RATE, EPSILON = 0.9, 1e-5
PERSONAL = {
    "normalisation": ("scale", "bias", "mean", "var"),
    "statistics": ("mean", "var"),
    "nothing": (),
}


def logits(params, x):
    """Logits of a model in evaluation, by its running statistics."""
    norm, h = params["norm"], x @ params["fc"]["kernel"]
    h = norm["scale"] * (h - norm["mean"]) / np.sqrt(norm["var"] + EPSILON) + norm["bias"]
    return np.maximum(h, 0) @ params["out"]["kernel"] + params["out"]["bias"]


def accuracy(params, x, y):
    """Fraction of examples classified correctly, with running statistics."""
    return np.mean(logits(params, x).argmax(axis=1) == y)


def gradient(params, x, y):
    """Gradient of the mean cross-entropy with the batch's mean and variance, which are returned too."""
    norm, n = params["norm"], len(y)
    z = x @ params["fc"]["kernel"]
    mu, var = z.mean(axis=0), z.var(axis=0)
    unit = (z - mu) / np.sqrt(var + EPSILON)
    a = norm["scale"] * unit + norm["bias"]
    h = np.maximum(a, 0)
    delta = np.exp(log_probabilities(h @ params["out"]["kernel"] + params["out"]["bias"]))
    delta[np.arange(n), y] -= 1
    delta /= n
    out = {"kernel": h.T @ delta, "bias": delta.sum(axis=0)}
    da = (delta @ params["out"]["kernel"].T) * (a > 0)
    du = da * norm["scale"]
    dz = (du - du.mean(axis=0) - unit * (du * unit).mean(axis=0)) / np.sqrt(
        var + EPSILON
    )  # Ioffe and Szegedy, 3
    of_norm = {"scale": (da * unit).sum(axis=0), "bias": da.sum(axis=0)}
    return {"fc": {"kernel": x.T @ dz}, "norm": of_norm, "out": out}, (mu, var)


def train(params, x, y, rows_of_steps, sgd):
    """Local SGD; optimizer and decay never touch the statistics."""
    params = {name: dict(layer) for name, layer in params.items()}
    buffers = {}
    for rows in rows_of_steps:
        of_batch, (mu, var) = gradient(params, x[rows], y[rows])
        for name, layer in of_batch.items():
            for part, g in layer.items():
                w = params[name][part]
                direction = g + (sgd.decay * w if part == "kernel" else 0.0)
                buffers[name, part] = (
                    sgd.momentum * buffers.get((name, part), 0.0) + direction
                )
                params[name][part] = w - sgd.step * buffers[name, part]
        norm = params["norm"]
        norm["mean"], norm["var"] = (
            RATE * norm["mean"] + (1 - RATE) * mu,
            RATE * norm["var"] + (1 - RATE) * var,
        )
    return params


class State(NamedTuple):
    """State after a round."""

    params: dict  # the mean of the cohort's models
    own: list  # each client's personal entries of the layer "norm"

    def model_of(self, i):
        """The shared layers with the personal entries of client i."""
        return self.params | {"norm": self.params["norm"] | self.own[i]}


def run(params, clients, cohorts, steps, *, sgd, client_weighting, personal):
    """Yields the state after every round; `personal` is a key of `PERSONAL`."""
    state = State(
        params,
        [{part: params["norm"][part] for part in PERSONAL[personal]} for _ in clients],
    )
    for t, cohort in enumerate(cohorts):
        models = [
            train(state.model_of(i), clients[i].x, clients[i].y, steps(t, i), sgd)
            for i in cohort
        ]
        weights = [weight(client_weighting, clients[i]) for i in cohort]
        own = list(state.own)
        for i, model in zip(cohort, models, strict=True):
            own[i] = {part: model["norm"][part] for part in PERSONAL[personal]}
        state = State(mean(models, weights), own)
        yield state
