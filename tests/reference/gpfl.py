"""GPFL (Zhang et al., 2023) in NumPy: valve and embeddings are layers beside the model."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, mean, train, weight

OTHERS = "beta", "gamma", "embeddings"


def model_of(parts):
    return {name: layer for name, layer in parts.items() if name not in OTHERS}


def normalize(layer, x):
    """Layer normalization, and what its gradient needs."""
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    standard = (x - x.mean(axis=-1, keepdims=True)) / deviation
    return standard * layer["scale"] + layer["offset"], (standard, deviation)


def normalize_backward(layer, kept, delta):
    """Gradients in the layer's scale and offset, and in its input."""
    standard, deviation = kept
    of_layer = {
        "scale": (delta * standard).sum(axis=0),
        "offset": delta.sum(axis=0),
    }
    at = delta * layer["scale"]
    at = (
        at
        - at.mean(axis=-1, keepdims=True)
        - standard * (at * standard).mean(axis=-1, keepdims=True)
    ) / deviation
    return of_layer, at


class Route:
    """Features behind the valve under one condition."""

    def __init__(self, parts, condition, features):
        self.parts, self.condition, self.features = parts, condition, features
        self.made, self.kept, self.dense = {}, {}, {}
        for name in ("gamma", "beta"):
            layer = parts[name]
            self.dense[name] = condition[None] @ layer["kernel"] + layer["bias"]
            self.made[name], self.kept[name] = normalize(
                layer, np.maximum(self.dense[name], 0)
            )
        self.out = np.maximum(features * (self.made["gamma"] + 1) + self.made["beta"], 0)

    def backward(self, delta):
        """Gradients in the valve, and in the features."""
        delta = delta * (self.out > 0)
        at_made = {"gamma": delta * self.features, "beta": delta}
        gradients = {}
        for name, at in at_made.items():
            layer = self.parts[name]
            gradients[name], at = normalize_backward(
                layer, self.kept[name], at.sum(axis=0, keepdims=True)
            )
            at = at * (self.dense[name] > 0)
            gradients[name] |= {"kernel": self.condition[:, None] @ at, "bias": at[0]}
        return gradients, delta * (self.made["gamma"] + 1)


def guided(fixed, own, penalty, decay):
    """The gradient of all parts; `fixed` are the downloaded embeddings, `own` is the client's condition."""
    generic = fixed.mean(axis=0)

    def gradient(parts, x, y):
        params, embeddings = model_of(parts), parts["embeddings"]["kernel"]
        inputs, _ = mlp.forward(params, x)
        head = list(params)[-1]
        first = Route(parts, own, inputs[-1])
        logits = first.out @ params[head]["kernel"] + params[head]["bias"]
        delta = mlp.at_logits(logits, y)
        of_own, at_features = first.backward(delta @ params[head]["kernel"].T)

        second = Route(parts, generic, inputs[-1])
        norms = np.maximum(np.linalg.norm(second.out, axis=1, keepdims=True), 1e-12)
        of_rows = np.linalg.norm(embeddings, axis=1, keepdims=True)
        z, c = second.out / norms, embeddings / of_rows
        at_cosines = mlp.at_logits(z @ c.T, y)
        at_z, at_c = at_cosines @ c, at_cosines.T @ z
        at_out = (at_z - z * (at_z * z).sum(axis=1, keepdims=True)) / norms
        at_embeddings = (at_c - c * (at_c * c).sum(axis=1, keepdims=True)) / of_rows
        difference = second.out - fixed[y]
        at_out = at_out + penalty * difference / np.linalg.norm(difference)
        of_generic, more = second.backward(at_out)

        no_logits = np.zeros_like(delta)
        gradients = mlp.backward(params, inputs, no_logits, at_features + more)
        gradients[head] = {"kernel": first.out.T @ delta, "bias": delta.sum(axis=0)}
        others = combine(np.add, of_own, of_generic)
        others["embeddings"] = {"kernel": at_embeddings}
        for name in OTHERS:
            others[name] = {
                part: value + decay * parts[name][part]
                for part, value in others[name].items()
            }
        return gradients | others

    return gradient


def condition(embeddings, y):
    shares = np.bincount(y, minlength=len(embeddings)) / len(y)
    return shares @ embeddings


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    others,
    penalty,
    decay,
    sgd,
    client_weighting="uniform",
):
    """Yields all parts and the clients' heads after every round; `others` are the first valve and embeddings."""
    *_, head = params
    parts = params | others
    heads = [params[head] for _ in clients]
    for t, cohort in enumerate(cohorts):
        trained = []
        fixed = parts["embeddings"]["kernel"]
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            start = parts | {head: heads[i]}
            gradient = guided(fixed, condition(fixed, y), penalty, decay)
            trained.append(train(start, list(start), x, y, steps(t, i), sgd, gradient))
            heads[i] = trained[-1][head]
        parts = mean(trained, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(
            params=model_of(parts),
            valve={name: parts[name] for name in ("beta", "gamma")},
            embeddings=parts["embeddings"]["kernel"],
            parts=parts,
            heads=list(heads),
        )


def own_accuracy(state, i, client, tuning, sgd):
    """Accuracy of the client's head behind the valve."""
    features = mlp.forward(state.params, client.x_test)[0][-1]
    own = condition(state.embeddings, client.y)
    out = Route(state.parts, own, features).out
    logits = out @ state.heads[i]["kernel"] + state.heads[i]["bias"]
    return np.mean(logits.argmax(axis=1) == client.y_test)
