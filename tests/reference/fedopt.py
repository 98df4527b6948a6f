"""FedAvgM (Hsu et al., 2019), FedAdagrad, FedAdam, FedYogi (Reddi et al., 2021, Algorithm 2), in NumPy."""

from types import SimpleNamespace

import numpy as np
from reference import fedavg
from reference.local import combine


def run(
    params, clients, cohorts, steps, *, rule, eta, beta1, beta2=0.99, tau=1e-3, **options
):
    """Yields the state after every round; the rest as for FedAvg, whose round gives the mean of the clients' models."""
    m = combine(np.zeros_like, params)
    v = combine(lambda w: np.full_like(w, 0.0 if rule == "momentum" else tau**2), params)
    for t, cohort in enumerate(cohorts):
        (mean,) = fedavg.run(
            params, clients, [cohort], lambda _, i, t=t: steps(t, i), **options
        )
        delta = combine(np.subtract, mean, params)
        if rule == "momentum":
            m = combine(lambda m, d: beta1 * m + d, m, delta)
            params = combine(lambda x, m: x + eta * m, params, m)
        else:
            m = combine(lambda m, d: beta1 * m + (1 - beta1) * d, m, delta)
            squares = {
                "adagrad": lambda v, d: v + d**2,
                "adam": lambda v, d: beta2 * v + (1 - beta2) * d**2,
                "yogi": lambda v, d: v - (1 - beta2) * d**2 * np.sign(v - d**2),
            }
            v = combine(squares[rule], v, delta)
            params = combine(
                lambda x, m, v: x + eta * m / (np.sqrt(v) + tau), params, m, v
            )
        yield SimpleNamespace(params=params, m=m, v=v)
