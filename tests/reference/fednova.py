"""FedNova (Wang et al., 2020), in NumPy: local steps are sums of gradients with weights a_i, averaged over |a_i|."""

import numpy as np
from reference.local import combine, mean, train, weight


def weights_of_gradients(number, momentum):
    """a_i: the weight of the gradient of each of `number` steps in the whole move, over the step size."""
    return np.array([sum(momentum**k for k in range(number - s)) for s in range(number)])


def run(params, clients, cohorts, steps, *, sgd, client_weighting="uniform"):
    """Yields the global model after every round; `steps(t, i)` are the rows of client i's batches."""
    for t, cohort in enumerate(cohorts):
        moves, norms, weights = [], [], []
        for i in cohort:
            rows = list(steps(t, i))
            w_i = train(params, list(params), clients[i].x, clients[i].y, rows, sgd)
            norm = weights_of_gradients(len(rows), sgd.momentum).sum()
            # d_i = G_i a_i / |a_i|
            moves.append(
                combine(
                    lambda w, own, norm=norm: (w - own) / (sgd.step * norm), params, w_i
                )
            )
            norms.append(norm)
            weights.append(weight(client_weighting, clients[i]))
        # w <- w - tau_eff sum_i p_i eta d_i
        far = sgd.step * np.average(norms, weights=weights)
        params = combine(lambda w, d, far=far: w - far * d, params, mean(moves, weights))
        yield params
