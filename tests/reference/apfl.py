"""APFL (Deng et al., 2020), Algorithm 1, in NumPy: one client after the other."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, mean, weight


def mixture(alpha, own, params):
    """alpha v + (1 - alpha) w."""
    return combine(lambda v, w: alpha * v + (1 - alpha) * w, own, params)


def local_steps(w, v, alpha, x, y, rows_of_steps, sgd, adaptive):
    """w_i, v_i, alpha_i and the momentum of each, step by step; all gradients at the old point, no decay on alpha."""
    zero = combine(np.zeros_like, w)
    buffer_w, buffer_v, buffer_alpha = zero, zero, 0.0

    def advance(params, buffer, gradient):
        decay = {
            n: {"kernel": sgd.decay * layer["kernel"], "bias": 0.0}
            for n, layer in params.items()
        }
        buffer = combine(
            lambda b, g, d: sgd.momentum * b + (g + d), buffer, gradient, decay
        )
        return combine(lambda p, b: p - sgd.step * b, params, buffer), buffer

    for rows in rows_of_steps:
        of_mixture = mlp.gradient(mixture(alpha, v, w), x[rows], y[rows])
        of_w = mlp.gradient(w, x[rows], y[rows])
        products = combine(lambda v, w, g: np.sum((v - w) * g), v, w, of_mixture)
        of_alpha = sum(
            product for layer in products.values() for product in layer.values()
        )
        w, buffer_w = advance(w, buffer_w, of_w)
        v, buffer_v = advance(
            v, buffer_v, combine(lambda g, alpha=alpha: alpha * g, of_mixture)
        )
        if adaptive:
            buffer_alpha = sgd.momentum * buffer_alpha + of_alpha
            alpha = min(max(alpha - sgd.step * buffer_alpha, 0.0), 1.0)
    return w, v, alpha


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    sgd,
    alpha,
    adaptive=False,
    client_weighting="uniform",
):
    """Yields the state after every round; `steps(t, i)` are the rows of the batches of client i in round t."""
    own, alphas = [params for _ in clients], [alpha for _ in clients]
    for t, cohort in enumerate(cohorts):
        messages, weights = [], []
        for i in cohort:
            c = clients[i]
            w, own[i], alphas[i] = local_steps(
                params, own[i], alphas[i], c.x, c.y, steps(t, i), sgd, adaptive
            )
            messages.append(w)
            weights.append(weight(client_weighting, c))
        params = mean(messages, weights)
        mixtures = [mixture(a, v, params) for a, v in zip(alphas, own, strict=True)]
        yield SimpleNamespace(
            params=params,
            own=list(own),
            alpha=list(alphas),
            mean_alpha=sum(alphas[i] for i in cohort) / len(cohort),
            mixtures=mixtures,
        )
