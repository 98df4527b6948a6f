"""FedSGD (McMahan et al., 2017), in NumPy: gradients over all of a client's examples, one step of the server."""

from reference import mlp
from reference.local import mean, weight


def run(params, clients, cohorts, *, sgd, client_weighting="num_examples"):
    """Yields the global model after every round; the server's momentum is kept between rounds."""
    buffers = {name: {part: 0.0 * w for part, w in layer.items()} for name, layer in params.items()}
    for cohort in cohorts:
        gradients = [mlp.gradient(params, clients[i].x, clients[i].y) for i in cohort]
        gradient = mean(gradients, [weight(client_weighting, clients[i]) for i in cohort])
        new = {}
        for name, layer in params.items():
            new[name] = {}
            for part, w in layer.items():
                direction = gradient[name][part] + (sgd.decay * w if part == "kernel" else 0.0)
                buffers[name][part] = sgd.momentum * buffers[name][part] + direction
                new[name][part] = w - sgd.step * buffers[name][part]
        params = new
        yield params
