"""FedPHP (Li et al., 2021) with distillation, in NumPy."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, mean, train, weight


def taught_by(own, teaching):
    """The gradient of the loss and of the cross-entropy to the private model's softened outputs."""

    def gradient(w, x, y):
        inputs, logits = mlp.forward(w, x)
        teacher = np.exp(mlp.log_probabilities(mlp.forward(own, x)[1] / 4))
        student = np.exp(mlp.log_probabilities(logits))
        delta = (1 - teaching) * mlp.at_logits(logits, y)
        delta = delta + teaching * (student - teacher) / len(y)
        return mlp.backward(w, inputs, delta)

    return gradient


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    teaching,
    inheritance,
    inheritance_rounds,
    sgd,
    client_weighting="uniform",
):
    """Yields the global model and the private ones after every round."""
    own = [params for _ in clients]
    rounds = [0 for _ in clients]
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            gradient = taught_by(own[i], teaching)
            model = train(params, list(params), x, y, steps(t, i), sgd, gradient)
            mu = min(inheritance * rounds[i] / inheritance_rounds, inheritance)
            own[i] = combine(lambda v, w, mu=mu: mu * v + (1 - mu) * w, own[i], model)
            rounds[i] += 1
            models.append(model)
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(params=params, own=list(own))
