"""HF-MAML (Fallah et al., 2020, Algorithm 1 with the Hessian-free step of its section 5), in NumPy."""

import numpy as np
from reference import mlp
from reference.local import combine, mean, train, weight


def plus(scale, a, b):
    """a + scale * b, layer by layer."""
    return combine(lambda a, b: a + scale * b, a, b)


def meta_gradient(params, x, y, *, alpha, delta, support_fraction=None):
    """(I - alpha H(w)) grad f(w - alpha grad f(w)), the product with H by central differences."""
    count = len(y)
    support = target = np.arange(count)
    if support_fraction is not None:
        number = int(max(np.round(support_fraction * count), 1))
        support, target = np.arange(number), np.arange(number, count)
        if not len(target):
            target = support
    inner = plus(-alpha, params, mlp.gradient(params, x[support], y[support]))
    v = mlp.gradient(inner, x[target], y[target])
    forward = mlp.gradient(plus(delta, params, v), x[support], y[support])
    backward = mlp.gradient(plus(-delta, params, v), x[support], y[support])
    product = plus(-1.0, forward, backward)
    return plus(-alpha / (2 * delta), v, product)


def run(params, clients, cohorts, steps, *, sgd, client_weighting="uniform", **meta):
    """Yields the global initialisation after every round."""

    def gradient(params, x, y):
        return meta_gradient(params, x, y, **meta)

    for t, cohort in enumerate(cohorts):
        models = [
            train(
                params,
                list(params),
                clients[i].x,
                clients[i].y,
                steps(t, i),
                sgd,
                gradient,
            )
            for i in cohort
        ]
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield params


def adapted_accuracy(params, client, alpha, inner_steps=1):
    """Accuracy after full-batch steps of size alpha on the client's data."""
    for _ in range(inner_steps):
        params = plus(-alpha, params, mlp.gradient(params, client.x, client.y))
    return mlp.accuracy(params, client.x_test, client.y_test)
