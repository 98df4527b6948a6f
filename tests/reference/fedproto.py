"""FedProto (Tan et al., 2022), Algorithm 1, in NumPy, with the features that enter the last layer."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import train


def gradient(w, x, y, prototypes, penalty):
    """Gradient of the batch's mean cross-entropy + penalty * mean squared difference to the class's prototype."""
    inputs, logits = mlp.forward(w, x)
    z = inputs[-1]
    to_prototype = np.array(
        [z[k] - prototypes[c] if c in prototypes else 0 * z[k] for k, c in enumerate(y)]
    )
    at_features = penalty * 2 * to_prototype / z.shape[1] / len(y)
    return mlp.backward(w, inputs, mlp.at_logits(logits, y), at_features)


def run(params, clients, cohorts, steps, *, penalty, sgd, client_weighting="uniform"):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    models, prototypes = [params for _ in clients], {}
    for t, cohort in enumerate(cohorts):
        own = {}  # class -> (prototype, weight) of each participant that has it
        for i in cohort:

            def regularised(w, x, y, prototypes=prototypes):
                return gradient(w, x, y, prototypes, penalty)

            x, y = clients[i].x, clients[i].y
            models[i] = train(
                models[i], list(params), x, y, steps(t, i), sgd, regularised
            )
            features = mlp.forward(models[i], x)[0][-1]
            for c in np.unique(y):
                weight = 1.0 if client_weighting == "uniform" else float((y == c).sum())
                own.setdefault(int(c), []).append((features[y == c].mean(axis=0), weight))
        new = {
            c: sum(w * p for p, w in found) / sum(w for _, w in found)
            for c, found in own.items()
        }
        prototypes = prototypes | new
        yield SimpleNamespace(prototypes=prototypes, models=list(models))


def nearest_accuracy(state, i, client):
    """Accuracy of predicting the class whose global prototype is nearest."""
    features = mlp.forward(state.models[i], client.x_test)[0][-1]
    classes = sorted(state.prototypes)
    distances = np.array(
        [np.linalg.norm(features - state.prototypes[c], axis=1) for c in classes]
    )
    return np.mean(np.array(classes)[distances.argmin(axis=0)] == client.y_test)
