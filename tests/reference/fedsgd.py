"""FedSGD (McMahan et al., 2017), in NumPy: gradients over all of a client's examples, one step of the server."""

import numpy as np
from reference import mlp
from reference.local import combine, mean, weight


def run(params, clients, cohorts, steps, *, sgd, client_weighting="num_examples"):
    """Yields the global model after every round; the server's momentum is kept, and `steps` is not used."""
    buffers = combine(np.zeros_like, params)
    for cohort in cohorts:
        gradients = [mlp.gradient(params, clients[i].x, clients[i].y) for i in cohort]
        gradient = mean(gradients, [weight(client_weighting, clients[i]) for i in cohort])
        decay = {
            n: {"kernel": sgd.decay * layer["kernel"], "bias": 0.0}
            for n, layer in params.items()
        }
        buffers = combine(
            lambda b, g, d: sgd.momentum * b + (g + d), buffers, gradient, decay
        )
        params = combine(lambda w, b: w - sgd.step * b, params, buffers)
        yield params
