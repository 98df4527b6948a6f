"""SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II), in NumPy, and its variate under momentum."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.local import combine, train


def run(params, clients, cohorts, steps, *, sgd, server_step=1.0, counts_momentum=True):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    variate = combine(np.zeros_like, params)
    variates = [variate for _ in clients]
    for t, cohort in enumerate(cohorts):
        moves, changes = [], []
        for i in cohort:

            def corrected(y, x_batch, y_batch, c_i=variates[i], c=variate):
                return combine(
                    lambda g, own, of_all: g - own + of_all,
                    mlp.gradient(y, x_batch, y_batch),
                    c_i,
                    c,
                )

            rows = list(steps(t, i))
            y = train(
                params, list(params), clients[i].x, clients[i].y, rows, sgd, corrected
            )
            # x - y_i is eta times the sum of all momentum buffers: the weight of a gradient with k steps still to come,
            # its own included, is 1 + beta + ... + beta^(k - 1)
            length = sgd.step * len(rows)
            if counts_momentum:
                length = sgd.step * sum(
                    sgd.momentum**j for k in range(1, len(rows) + 1) for j in range(k)
                )
            new = combine(
                lambda own, c, x, y, far=length: own - c + (x - y) / far,
                variates[i],
                variate,
                params,
                y,
            )
            moves.append(combine(np.subtract, y, params))
            changes.append(combine(np.subtract, new, variates[i]))
            variates[i] = new
        params = combine(
            lambda x, *moved: x + server_step * sum(moved) / len(moved), params, *moves
        )
        variate = combine(
            lambda c, *changed: c + sum(changed) / len(clients), variate, *changes
        )
        yield SimpleNamespace(params=params, variate=variate, variates=list(variates))
