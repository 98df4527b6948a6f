"""q-FedAvg (Li et al., 2020), Algorithm 2, in NumPy: models as vectors."""

import numpy as np
from reference import mlp
from reference.fed_mtl import flat, unflat
from reference.local import train, weight


def run(params, clients, cohorts, steps, *, q, sgd, client_weighting="uniform"):
    """Yields the global model after every round."""
    lipschitz = 1 / sgd.step
    for t, cohort in enumerate(cohorts):
        w = flat(params)
        deltas = 0.0
        h = 0.0
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            p = weight(client_weighting, clients[i])
            loss = mlp.loss(params, x, y) + 1e-10
            trained = train(params, list(params), x, y, steps(t, i), sgd)
            change = lipschitz * (w - flat(trained))
            deltas = deltas + p * loss**q * change
            h += p * q * loss ** (q - 1) * np.sum(change**2)
            h += p * lipschitz * loss**q
        params = unflat(w - deltas / h, params)
        yield params
