"""FedCAC (Wu et al., 2023) in NumPy: models and flags as vectors, a table of overlaps."""

from types import SimpleNamespace

import numpy as np
from reference.fed_mtl import flat, unflat
from reference.local import combine, mean, train, weight


def critical(start, end, share):
    """Flags of a model: of each array the most sensitive entries, sorted; none that did not move."""

    def of_array(before, after):
        sensitivity = np.abs((after - before) * after).ravel()
        most = np.argsort(-sensitivity, kind="stable")[: int(share * sensitivity.size)]
        flags = np.zeros(sensitivity.size)
        flags[most] = sensitivity[most] > 0
        return flags.reshape(after.shape)

    return combine(of_array, start, end)


def customized(models, masks, t, beta):
    """The mean model of those that are alike, for each participant; `models` and `masks` are by participant."""
    overlaps = {
        (i, j): 1 - np.abs(masks[i] - masks[j]).sum() / (masks[i].sum() + masks[j].sum())
        for i in models
        for j in models
        if i != j
    }
    values = list(overlaps.values())
    threshold = np.inf
    if values:
        threshold = np.mean(values) + t / beta * (max(values) - np.mean(values))
    found = {}
    for i in models:
        alike = [j for j in models if j != i and overlaps[i, j] >= threshold - 1e-12]
        found[i] = np.mean([models[j] for j in [i, *alike]], axis=0)
    return found


def run(params, clients, cohorts, steps, *, share, beta, sgd, client_weighting="uniform"):
    """Yields the global model, and the clients' models and flags, after every round."""
    own = [flat(params) for _ in clients]
    flags = [np.zeros_like(vector) for vector in own]
    for t, cohort in enumerate(cohorts):
        models = {}
        for i in cohort:
            mixed = flags[i] * own[i] + (1 - flags[i]) * flat(params)
            start = unflat(mixed, params)
            layers = list(params)
            x, y = clients[i].x, clients[i].y
            models[i] = train(start, layers, x, y, steps(t, i), sgd)
            flags[i] = flat(critical(start, models[i], share))
        vectors = {i: flat(models[i]) for i in cohort}
        found = customized(vectors, {i: flags[i] for i in cohort}, t + 1, beta)
        for i in cohort:
            own[i] = found[i]
        weights = [weight(client_weighting, clients[i]) for i in cohort]
        params = mean([models[i] for i in cohort], weights)
        yield SimpleNamespace(
            params=params,
            own=[unflat(vector, params) for vector in own],
            critical=[unflat(vector, params) for vector in flags],
            starts=[
                unflat(m * v + (1 - m) * flat(params), params)
                for m, v in zip(flags, own, strict=True)
            ],
        )
