"""Ditto (Li et al., 2021), Algorithm 1 with FedAvg for the global model, in NumPy: one client after the other."""

from typing import NamedTuple

from reference import mlp
from reference.local import mean, train, weight


class State(NamedTuple):
    """The global model w, and the personal model v_i of every client."""

    params: dict
    own: list


def run(params, clients, cohorts, steps, *, sgd, penalty, client_weighting="uniform"):
    """Yields the state after every round; `steps(t, i)` are the rows of the batches of client i in round t."""
    own = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        messages, weights, w = [], [], params

        def towards_global(v, x, y, w=w):
            gradient = mlp.gradient(v, x, y)
            return {
                name: {part: gradient[name][part] + penalty * (v[name][part] - w[name][part]) for part in layer}
                for name, layer in v.items()
            }

        for i in cohort:
            x, y = clients[i].x, clients[i].y
            messages.append(train(w, list(w), x, y, steps(t, i), sgd))
            own[i] = train(own[i], list(w), x, y, steps(t, i), sgd, towards_global)
            weights.append(weight(client_weighting, clients[i]))
        params = mean(messages, weights)
        yield State(params, list(own))
