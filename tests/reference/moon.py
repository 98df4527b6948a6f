"""MOON (Li, He and Song, 2021), Algorithm 1, in NumPy, with the features that enter the last layer."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import mean, train, weight


def cosine(a, b):
    """Cosines of the angles between rows, and their gradients in a; zero where a row is."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    norms = np.maximum(norms, 1e-8)[:, None]
    value = (a * b).sum(axis=1, keepdims=True) / norms
    squares = np.maximum((a * a).sum(axis=1, keepdims=True), 1e-300)
    return value[:, 0], np.where(norms > 1e-8, b / norms - value * a / squares, 0)


def gradient(w, x, y, w_glob, w_prev, mu, tau):
    """Gradient of the batch's mean cross-entropy + mu * contrastive loss."""
    inputs, logits = mlp.forward(w, x)
    z, z_glob, z_prev = (
        inputs[-1],
        mlp.forward(w_glob, x)[0][-1],
        mlp.forward(w_prev, x)[0][-1],
    )
    (to_glob, d_glob), (to_prev, d_prev) = cosine(z, z_glob), cosine(z, z_prev)
    # -log(e^a / (e^a + e^b)): its derivative in b is e^b / (e^a + e^b), in a the negative of that
    share = 1 / (1 + np.exp((to_glob - to_prev) / tau))
    at_features = mu * share[:, None] * (d_prev - d_glob) / tau / len(y)
    return mlp.backward(w, inputs, mlp.at_logits(logits, y), at_features)


def run(params, clients, cohorts, steps, *, mu, tau, sgd, client_weighting="uniform"):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    last = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:

            def both(w, x, y, w_glob=params, w_prev=last[i]):
                return gradient(w, x, y, w_glob, w_prev, mu, tau)

            models.append(
                train(
                    params,
                    list(params),
                    clients[i].x,
                    clients[i].y,
                    steps(t, i),
                    sgd,
                    both,
                )
            )
        for i, model in zip(cohort, models, strict=True):
            last[i] = model
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(params=params, last=list(last))
