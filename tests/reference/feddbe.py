"""FedAvg with DBE (Zhang et al., 2023), momentum 1, in NumPy: the client's vector is a layer beside the model."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import mean, train, weight

OWN = "own"  # the personal vector, as a bias


def shared_of(both):
    return {name: layer for name, layer in both.items() if name != OWN}


def outputs(both, x):
    """Inputs of every layer, and the logits, with the vector added to the features."""
    inputs, _ = mlp.forward(shared_of(both), x)
    head = list(both.values())[-2]
    inputs[-1] = inputs[-1] + both[OWN]["bias"]
    return inputs, inputs[-1] @ head["kernel"] + head["bias"]


def features(params, x):
    return mlp.forward(params, x)[0][-1]


def debiased(global_mean, kappa):
    """The gradient of the loss + kappa / 2 * mean squared difference of the mean features."""

    def gradient(both, x, y):
        shared = shared_of(both)
        inputs, logits = outputs(both, x)
        delta = mlp.at_logits(logits, y)
        head = list(shared.values())[-1]
        at_bias = (delta @ head["kernel"].T).sum(axis=0)
        plain, _ = mlp.forward(shared, x)
        difference = plain[-1].mean(axis=0) - global_mean
        at_features = kappa * difference / difference.size / len(y)
        # layers below see the features without the vector
        gradients = mlp.backward(shared, plain, delta, np.tile(at_features, (len(y), 1)))
        gradients["out"]["kernel"] = inputs[-1].T @ delta
        return gradients | {OWN: {"bias": at_bias}}

    return gradient


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    first_steps,
    kappa,
    sgd,
    client_weighting="uniform",
):
    """Yields model, mean features and the clients' vectors after every round."""
    means = []
    for i, client in enumerate(clients):
        trained = train(params, list(params), client.x, client.y, first_steps(i), sgd)
        means.append(features(trained, client.x).mean(axis=0))
    sizes = np.array([len(client.y) for client in clients])
    global_mean = sizes @ np.array(means) / sizes.sum()
    own = [np.zeros_like(global_mean) for _ in clients]
    gradient = debiased(global_mean, kappa)
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            both = params | {OWN: {"bias": own[i]}}
            both = train(both, list(both), x, y, steps(t, i), sgd, gradient)
            own[i] = both[OWN]["bias"]
            models.append(shared_of(both))
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(params=params, mean=global_mean, own=list(own))


def own_accuracy(state, i, client, tuning, sgd):
    """Accuracy of the global model with the client's vector."""
    both = state.params | {OWN: {"bias": state.own[i]}}
    _, logits = outputs(both, client.x_test)
    return np.mean(logits.argmax(axis=1) == client.y_test)
