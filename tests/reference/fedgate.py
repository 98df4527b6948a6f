"""FedGATE as FLANP runs it (Reisizadeh et al., Algorithm 2), in NumPy, for unequal numbers of steps."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, mean, train, weight


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    stages,
    sgd,
    gamma,
    client_weighting="uniform",
    step_sizes=None,
    gammas=None,
):
    """Yields the state after every round; Delta_i / tau_i is averaged, and the model moves by the mean tau.

    `stages[t]` is the stage of round t; step sizes and gammas by stage replace those of `sgd` and `gamma`. Under
    momentum tau_i is what one gradient in every step would add up to.
    """
    zero = combine(np.zeros_like, params)
    tracking, known = [zero for _ in clients], [0] * len(clients)
    for t, cohort in enumerate(cohorts):
        if step_sizes is not None:
            sgd = sgd._replace(step=step_sizes[stages[t]])
        if gammas is not None:
            gamma = gammas[stages[t]]
        directions, taus, weights = [], [], []
        for i in cohort:
            if known[i] != stages[t]:
                tracking[i], known[i] = zero, stages[t]
            rows = list(steps(t, i))

            def tracked(w, x, y, delta=tracking[i]):
                return combine(np.subtract, mlp.gradient(w, x, y), delta)

            w_i = train(
                params, list(params), clients[i].x, clients[i].y, rows, sgd, tracked
            )
            buffer, tau = 0.0, 0.0
            for _ in rows:
                buffer = sgd.momentum * buffer + 1.0
                tau += buffer
            directions.append(
                combine(lambda w, own, far=sgd.step * tau: (w - own) / far, params, w_i)
            )
            taus.append(tau)
            weights.append(weight(client_weighting, clients[i]))
        direction = mean(directions, weights)
        for i, own in zip(cohort, directions, strict=True):
            tracking[i] = combine(lambda d, o, m: d + o - m, tracking[i], own, direction)
        far = sgd.step * gamma * np.average(taus, weights=weights)
        params = combine(lambda w, m, far=far: w - far * m, params, direction)
        yield SimpleNamespace(params=params, tracking=list(tracking))
