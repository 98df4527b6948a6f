"""FedRoD (Chen and Chao, 2022) with linear personal heads, in NumPy; the last layer is the head."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import Sgd, mean, train, weight

OWN = "own"  # the personal head, beside the layers of the shared model


def shared_of(both):
    return {name: layer for name, layer in both.items() if name != OWN}


def logits_of_both(both, x):
    """Inputs of every layer, logits of the generic head, and logits of the personal head."""
    inputs, generic = mlp.forward(shared_of(both), x)
    return inputs, generic, inputs[-1] @ both[OWN]["kernel"] + both[OWN]["bias"]


def gradient(both, x, y, log_counts):
    """Balanced softmax for the shared model; for the personal head the loss of the sum of both heads."""
    inputs, generic, own = logits_of_both(both, x)
    delta = mlp.at_logits(generic + own, y)
    of_own = {"kernel": inputs[-1].T @ delta, "bias": delta.sum(axis=0)}
    return mlp.backward(
        shared_of(both), inputs, mlp.at_logits(generic + log_counts, y)
    ) | {OWN: of_own}


def run(
    params, clients, cohorts, steps, *, num_classes, sgd: Sgd, client_weighting="uniform"
):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    heads = [params[list(params)[-1]] for _ in clients]
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:
            counts = np.bincount(clients[i].y, minlength=num_classes)
            with np.errstate(divide="ignore"):
                log_counts = np.log(
                    counts
                )  # minus infinity for a class that the client lacks: no probability

            def of_both(both, x, y, log_counts=log_counts):
                return gradient(both, x, y, log_counts)

            start = params | {OWN: heads[i]}
            trained = train(
                start, list(start), clients[i].x, clients[i].y, steps(t, i), sgd, of_both
            )
            heads[i] = trained.pop(OWN)
            models.append(trained)
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(params=params, heads=list(heads))


def own_accuracy(state, i, client):
    """Accuracy of the sum of both heads."""
    _, generic, own = logits_of_both(state.params | {OWN: state.heads[i]}, client.x_test)
    return np.mean((generic + own).argmax(axis=1) == client.y_test)
