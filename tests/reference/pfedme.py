"""pFedMe (Dinh, Tran and Nguyen, 2020), Algorithm 1, in NumPy; theta goes on from batch to batch within a round."""

from types import SimpleNamespace

from reference import mlp
from reference.local import combine, mean, no_momentum, train, weight


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    sgd,
    penalty,
    inner_steps,
    inner_step,
    beta,
    client_weighting="uniform",
):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    own = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        models = []
        for i in cohort:
            w, theta = params, params
            buffers = no_momentum(params, params)
            for rows in steps(t, i):
                for _ in range(inner_steps):
                    slope = mlp.gradient(theta, clients[i].x[rows], clients[i].y[rows])
                    theta = combine(
                        lambda th, g, w: th - inner_step * (g + penalty * (th - w)),
                        theta,
                        slope,
                        w,
                    )
                of_envelope = combine(lambda w, th: penalty * (w - th), w, theta)
                w = train(
                    w,
                    w,
                    clients[i].x,
                    clients[i].y,
                    [rows],
                    sgd,
                    lambda *_, g=of_envelope: g,
                    buffers,
                )
            models.append(w)
            own[i] = theta
        average = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        params = combine(lambda w, m: (1 - beta) * w + beta * m, params, average)
        yield SimpleNamespace(params=params, own=list(own))
