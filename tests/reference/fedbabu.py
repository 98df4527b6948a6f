"""FedBABU (Oh, Kim and Yun, 2022), Algorithm 1, in NumPy: the body is trained under the first head."""

from reference.local import mean, train, weight


def run(params, clients, cohorts, steps, *, own, sgd, client_weighting="uniform"):
    """Yields the model after every round; `own` names the head, `steps(t, i)` are the rows of client i's batches."""
    body = [name for name in params if name not in own]
    for t, cohort in enumerate(cohorts):
        models = [
            train(params, body, clients[i].x, clients[i].y, steps(t, i), sgd)
            for i in cohort
        ]
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield params
