"""FedProx (Li et al., 2020, Algorithm 2), in NumPy: FedAvg on f_i(w_i) + (mu / 2) |w_i - w|^2."""

from reference.local import mean, towards, train, weight


def run(params, clients, cohorts, steps, *, mu, sgd, client_weighting="uniform"):
    """Yields the global model after every round; `steps(t, i)` are the rows of client i's batches."""
    for t, cohort in enumerate(cohorts):
        gradient = towards(params, mu)
        models = [
            train(
                params,
                list(params),
                clients[i].x,
                clients[i].y,
                steps(t, i),
                sgd,
                gradient,
            )
            for i in cohort
        ]
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield params
