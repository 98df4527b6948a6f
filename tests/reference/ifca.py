"""IFCA (Ghosh et al., 2020), Algorithm 1 with model averaging, in NumPy: a list of models."""

from types import SimpleNamespace

import numpy as np
from reference import fedavg, mlp
from reference.local import combine, mean, train, weight


def chosen(models, client):
    """The index of the model of least loss on the client's training examples."""
    losses = [mlp.loss(params, client.x, client.y) for params in models]
    return losses.index(min(losses))


def run(params, clients, cohorts, steps, *, num_clusters, sgd, client_weighting):
    """Yields the models after every round, stacked; `params` are those of the start."""
    models = [combine(lambda a, j=j: a[j], params) for j in range(num_clusters)]
    for t, cohort in enumerate(cohorts):
        members = [[] for _ in models]
        for i in cohort:
            j = chosen(models, clients[i])
            layers = list(models[j])
            x, y = clients[i].x, clients[i].y
            trained = train(models[j], layers, x, y, steps(t, i), sgd)
            members[j].append((trained, weight(client_weighting, clients[i])))
        for j, of_cluster in enumerate(members):
            if of_cluster:
                models[j] = mean(*zip(*of_cluster, strict=True))
        stacked = combine(lambda *a: np.stack(a), *models)
        yield SimpleNamespace(params=stacked, models=list(models))


def accuracy(state, i, client, tuning, sgd):
    """Accuracy of the model of the client's cluster."""
    params = state.models[chosen(state.models, client)]
    return mlp.accuracy(params, client.x_test, client.y_test)


def fine_tuned_accuracy(state, i, client, tuning, sgd):
    """Accuracy of that model after its head was trained."""
    params = state.models[chosen(state.models, client)]
    return fedavg.fine_tuned_accuracy(params, ["out"], client, tuning("head"), sgd)
