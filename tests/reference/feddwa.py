"""FedDWA (Liu et al., 2023) in NumPy: models as vectors, a matrix of weights."""

from types import SimpleNamespace

import numpy as np
from reference.fed_mtl import flat, unflat
from reference.local import train


def mixture(own, models, num_neighbours):
    """The mixture of the models nearest to a guidance model, by inverse squared distances."""
    squares = np.array([np.sum((own - model) ** 2) for model in models])
    squares = np.maximum(squares, np.finfo(float).tiny)
    nearest = np.argsort(squares, kind="stable")[:num_neighbours]
    p = 1 / (squares[nearest] / squares.min())
    p = p / p.sum()
    return sum(p_j * models[j] for p_j, j in zip(p, nearest, strict=True))


def run(params, clients, cohorts, steps, *, guidance_steps, num_neighbours, sgd):
    """Yields the models and guidance models of all clients after every round."""
    models = [params for _ in clients]
    guidance = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        last = [flat(models[j]) for j in cohort]
        mixtures = {i: mixture(flat(guidance[i]), last, num_neighbours) for i in cohort}
        for i in cohort:
            layers = list(params)
            x, y = clients[i].x, clients[i].y
            start = unflat(mixtures[i], params)
            models[i] = train(start, layers, x, y, steps(t, i), sgd)
            guidance[i] = train(models[i], layers, x, y, guidance_steps(t, i), sgd)
        yield SimpleNamespace(models=list(models), guidance=list(guidance))
