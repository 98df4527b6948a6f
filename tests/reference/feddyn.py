"""FedDyn (Acar et al., 2021), Algorithm 1, in NumPy: one client after the other."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, mean, train


def run(params, clients, cohorts, steps, *, alpha, sgd):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    zero = combine(np.zeros_like, params)
    h, of_clients = zero, [zero for _ in clients]
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:

            def dynamic(w_i, x, y, w=params, h_i=of_clients[i]):
                gradient = mlp.gradient(w_i, x, y)
                return combine(
                    lambda g, h_i, w_i, w: g - h_i + alpha * (w_i - w),
                    gradient,
                    h_i,
                    w_i,
                    w,
                )

            model = train(
                params,
                list(params),
                clients[i].x,
                clients[i].y,
                steps(t, i),
                sgd,
                dynamic,
            )
            of_clients[i] = combine(
                lambda h_i, w_i, w: h_i - alpha * (w_i - w), of_clients[i], model, params
            )
            models.append(model)
        for model in models:
            h = combine(
                lambda h, w_i, w: h - alpha / len(clients) * (w_i - w), h, model, params
            )
        params = combine(lambda m, h: m - h / alpha, mean(models, [1.0] * len(models)), h)
        yield SimpleNamespace(params=params, h=h, of_clients=list(of_clients))
