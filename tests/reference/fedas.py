"""FedAS (Yang, Huang and Ye, 2024), Algorithm 1, in NumPy; the last layer is the head."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import Sgd, mean, train


def distance_gradient(w, x, y, centroids):
    """Gradient of the mean squared difference between features and the class's centroid."""
    inputs, logits = mlp.forward(w, x)
    z = inputs[-1]
    at_features = 2 * (z - np.array([centroids[c] for c in y])) / z.size
    return mlp.backward(w, inputs, np.zeros_like(logits), at_features)


def run(params, clients, cohorts, steps, *, align_steps, fisher_steps, align, sgd):
    """Yields the state after every round; `steps(t, i)` and the others are the rows of client i's batches."""
    *body, last = list(params)
    models = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        traces = []
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            features = mlp.forward(models[i], x)[0][-1]
            centroids = {c: features[y == c].mean(axis=0) for c in np.unique(y)}

            def distance(w, x, y, centroids=centroids):
                return distance_gradient(w, x, y, centroids)

            start = params | {last: models[i][last]}
            start = train(start, body, x, y, align_steps(t, i), Sgd(align), distance)
            models[i] = train(start, list(params), x, y, steps(t, i), sgd)
            slopes = [
                mlp.gradient(models[i], x[rows], y[rows]) for rows in fisher_steps(t, i)
            ]
            traces.append(
                sum(
                    np.sum(a**2)
                    for slope in slopes
                    for layer in slope.values()
                    for a in layer.values()
                )
            )
        params = mean([models[i] for i in cohort], traces)
        yield SimpleNamespace(params=params, models=list(models))
