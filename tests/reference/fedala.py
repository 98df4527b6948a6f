"""FedALA (Zhang et al., 2023), Algorithm 1, in NumPy; the last layer is adapted."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, mean, train, weight


def mixture(own, shared, weights):
    return {part: own[part] + (shared[part] - own[part]) * weights[part] for part in own}


def aggregate(
    params, own, weights, learnt, client, rows_of_epochs, *, eta, start_epochs, last
):
    """The local model to start from, and its weights; `rows_of_epochs(number)` are the rows of batches."""
    shared = params[last]
    if all(np.array_equal(own[part], shared[part]) for part in own):
        return params, weights, learnt
    for rows in rows_of_epochs(1 if learnt else start_epochs):
        slope = mlp.gradient(
            params | {last: mixture(own, shared, weights)}, client.x[rows], client.y[rows]
        )[last]
        # the chain rule: the mixture moves by theta - theta_i where the weight moves by 1
        weights = {
            p: np.clip(w - eta * slope[p] * (shared[p] - own[p]), 0, 1)
            for p, w in weights.items()
        }
    return params | {last: mixture(own, shared, weights)}, weights, True


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    rows_of_epochs,
    eta,
    start_epochs,
    sgd,
    client_weighting="uniform",
):
    """Yields the state after every round; `rows_of_epochs(t, i)` takes a number of epochs."""
    last = list(params)[-1]
    heads, learnt = [params[last] for _ in clients], [False for _ in clients]
    ones = combine(np.ones_like, {last: params[last]})[last]
    weights = [ones for _ in clients]
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:
            more = {"eta": eta, "start_epochs": start_epochs, "last": last}
            args = (
                params,
                heads[i],
                weights[i],
                learnt[i],
                clients[i],
                rows_of_epochs(t, i),
            )
            start, weights[i], learnt[i] = aggregate(*args, **more)
            model = train(
                start, list(start), clients[i].x, clients[i].y, steps(t, i), sgd
            )
            models.append(model)
            heads[i] = model[last]
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(
            params=params, heads=list(heads), weights=list(weights), learnt=list(learnt)
        )
