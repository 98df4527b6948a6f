"""FedFomo (Zhang et al., 2021) in NumPy: models as vectors, a matrix of preferences."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.fed_mtl import flat, unflat
from reference.local import mean, train, weight


def offered(preferences, others, lots, explores):
    """The ids that a client downloads: for each flag any of the others, or the preferred one; ties by lot."""
    chosen = []
    for explore in explores:
        left = [j for j in others if j not in chosen]
        if not left:
            break
        if not explore:
            best = max(preferences[j] for j in left)
            left = [j for j in left if preferences[j] == best]
        chosen.append(max(left, key=lambda j: lots[j]))
    return chosen


def weights_of(start, models, x, y, like):
    """w_n of each model, by id."""
    loss = lambda vector: mlp.loss(unflat(vector, like), x, y)
    found = {}
    for n, model in models.items():
        distance = np.linalg.norm(model - start)
        found[n] = (loss(start) - loss(model)) / distance if distance else 0.0
    return found


def run(
    params, clients, cohorts, steps, *, training, validation, draws, sgd, client_weighting
):
    """Yields models and preferences after every round.

    `training(t, i)` are the rows of client i's batches, `validation(i)` its validation rows, `draws(t, i)` its lots by
    client, and a flag for each download whether it explores; `steps` are those of other methods.
    """
    own = [flat(params) for _ in clients]
    preferences = np.zeros((len(clients), len(clients)))
    for t, cohort in enumerate(cohorts):
        trained = {}
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            start = unflat(own[i], params)
            trained[i] = flat(train(start, list(params), x, y, training(t, i), sgd))
        used = 0
        for i in cohort:
            others = [j for j in cohort if j != i]
            ids = offered(preferences[i], others, *draws(t, i))
            rows = validation(i)
            models = {n: trained[n] for n in [*ids, i]}
            x, y = clients[i].x[rows], clients[i].y[rows]
            weights = weights_of(own[i], models, x, y, params)
            positive = {n: max(w, 0) for n, w in weights.items()}
            total = sum(positive.values())
            for n in ids:
                preferences[i, n] += weights[n]
            if total > 0:
                used += sum(w > 0 for n, w in positive.items() if n != i)
                start = own[i]
                own[i] = start + sum(
                    w / total * (models[n] - start) for n, w in positive.items()
                )
        sizes = [weight(client_weighting, clients[i]) for i in cohort]
        yield SimpleNamespace(
            params=mean([unflat(trained[i], params) for i in cohort], sizes),
            models=[unflat(vector, params) for vector in own],
            preferences=list(preferences.copy()),
            used=used / len(cohort),
        )
