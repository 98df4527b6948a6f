"""FedAsync (Xie et al., 2019, Algorithm 1), in NumPy: the server takes one model after the other."""

from reference.fedbuff import Step
from reference.local import combine, towards, train


def s(kind, tau, a, b=0.0):
    """The paper's functions of the staleness."""
    if kind == "constant":
        return 1.0
    if kind == "polynomial":
        return (tau + 1) ** -a
    return 1.0 if tau <= b else 1 / (a * (tau - b) + 1)


def run(params, clients, queue, steps, *, sgd, alpha, weight_of, rho=0.0):
    """Yields every `Step` of the server; `weight_of(tau)` is s."""
    models = [params]
    for job in queue:
        i, version, start = job.client, len(models) - 1, models[job.version]
        trained = train(
            start,
            list(start),
            clients[i].x,
            clients[i].y,
            steps(version, i),
            sgd,
            towards(start, rho),
        )
        tau = version - job.version
        share = alpha * weight_of(tau)
        mixed = combine(
            lambda w, new, share=share: (1 - share) * w + share * new, models[-1], trained
        )
        models.append(mixed)
        yield Step(job.end, [i], [tau], mixed)
