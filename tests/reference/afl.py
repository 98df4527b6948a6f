"""AFL (Mohri et al., 2019) in NumPy: lambda is a vector, its projection is found by bisection."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import mean, train


def projection(point, total):
    """The point of {p >= 0, sum p = total} nearest to `point`: max(point - tau, 0) for one tau."""
    low = point.min() - total
    high = point.max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(point - middle, 0).sum() > total:
            low = middle
        else:
            high = middle
    return np.maximum(point - low, 0)


def run(params, clients, cohorts, steps, *, gamma, sgd):
    """Yields model and lambda after every round; weights move among the participants."""
    weights = np.full(len(clients), 1 / len(clients))
    for t, cohort in enumerate(cohorts):
        models = []
        losses = []
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            losses.append(mlp.loss(params, x, y))
            models.append(train(params, list(params), x, y, steps(t, i), sgd))
        of_cohort = weights[cohort]
        if of_cohort.sum() > 0:
            params = mean(models, of_cohort)
        raised = of_cohort + gamma * np.array(losses)
        weights = weights.copy()
        weights[cohort] = projection(raised, of_cohort.sum())
        shares = [len(clients) * each for each in weights]
        yield SimpleNamespace(params=params, shares=shares)
