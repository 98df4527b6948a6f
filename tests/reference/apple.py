"""APPLE (Luo and Wu, 2022) in NumPy: core models and directed relations as matrices, a row for each client."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.fed_mtl import flat, unflat
from reference.local import combine, train, weight


def schedule(name, r, rounds):
    """lambda(r), which is 0 from round L on."""
    if r >= rounds:
        return 0.0
    if name == "cosine":
        return (1 + np.cos(np.pi * r / rounds)) / 2
    return 1e-3 ** (r / rounds)


def run(params, clients, cohorts, steps, *, eta, mu, rounds, name, sgd, client_weighting):
    """Yields cores and relations after every round; `params` are the stacked cores of the start."""
    first = combine(lambda cores: cores[0], params)
    cores = np.stack([flat(first)] * len(clients))
    sizes = np.array([weight(client_weighting, client) for client in clients])
    p_0 = sizes / sizes.sum()
    p = np.stack([p_0] * len(clients))
    for t, cohort in enumerate(cohorts):
        penalty = schedule(name, t, rounds) * mu
        sent = cores.copy()
        for i in cohort:
            known = cores.copy()

            def gradient(core, x, y, i=i, known=known, penalty=penalty):
                known[i] = flat(core)
                personal = unflat(p[i] @ known, first)
                by_layer = mlp.gradient(personal, x, y)
                of_model = flat(
                    combine(lambda w, g: g, first, by_layer)
                )  # in the order of `first`
                of_core = p[i, i] * of_model
                p[i] -= eta * (known @ of_model + penalty * (p[i] - p_0))
                return unflat(of_core, first)

            x, y = clients[i].x, clients[i].y
            core = unflat(cores[i], first)
            rows = steps(t, i)
            sent[i] = flat(train(core, list(first), x, y, rows, sgd, gradient))
        cores = sent
        yield SimpleNamespace(
            cores=combine(lambda *w: np.stack(w), *(unflat(w, first) for w in cores)),
            p_0=p_0,
            changes=list(p - p_0),
            own_relation=np.mean([p[i, i] for i in cohort]),
            mixtures=[unflat(w, first) for w in p @ cores],
        )
