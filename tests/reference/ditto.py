"""Ditto (Li et al., 2021), Algorithm 1 with FedAvg for the global model, in NumPy: one client after the other."""

from types import SimpleNamespace

from reference.local import mean, towards, train, weight


def run(params, clients, cohorts, steps, *, sgd, penalty, client_weighting="uniform"):
    """Yields the state after every round; `steps(t, i)` are the rows of the batches of client i in round t."""
    own = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        w, messages = params, []
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            messages.append(train(w, list(w), x, y, steps(t, i), sgd))
            own[i] = train(own[i], list(w), x, y, steps(t, i), sgd, towards(w, penalty))
        params = mean(messages, [weight(client_weighting, clients[i]) for i in cohort])
        yield SimpleNamespace(params=params, own=list(own))
