"""FedAMP (Huang et al., 2021), Algorithm 1, in NumPy: models as vectors, a matrix of attention."""

import numpy as np
from reference.fed_mtl import flat, unflat
from reference.local import towards, train


def mixtures(models, cohort, alpha, sigma):
    """u_i of every participant, with the weight of its own model 1 - sum_{j != i} xi_ij."""
    vectors = {i: flat(models[i]) for i in cohort}
    found = {}
    for i in cohort:
        xi = {
            j: alpha * np.exp(-np.sum((vectors[i] - vectors[j]) ** 2) / sigma) / sigma
            for j in cohort
            if j != i
        }
        xi[i] = 1 - sum(xi.values())
        found[i] = unflat(sum(xi[j] * vectors[j] for j in cohort), models[i])
    return found


def run(params, clients, cohorts, steps, *, alpha, sigma, penalty, sgd):
    """Yields the models of all clients after every round; `steps(t, i)` are the rows of client i's batches."""
    models = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        u = mixtures(models, cohort, alpha, sigma)
        for i in cohort:
            near = towards(u[i], penalty / alpha)
            models[i] = train(
                models[i],
                list(params),
                clients[i].x,
                clients[i].y,
                steps(t, i),
                sgd,
                near,
            )
        yield list(models)
