"""LG-FedAvg (Liang et al., 2020) in NumPy: one client after the other."""

from typing import NamedTuple

from reference import mlp
from reference.local import mean, train, weight


class State(NamedTuple):
    """The global layers, the mean of the cohort's local ones (fine-tuning starts there), the local ones of all."""

    shared: dict
    mean_local: dict
    local: list
    trained: frozenset  # ids of the clients that have taken part


def run(params, global_layers, clients, cohorts, steps, *, sgd, client_weighting="uniform"):
    """Yields the state after every round; `steps(t, i)` are the rows of the batches of client i in round t."""
    local_layers = [name for name in params if name not in global_layers]
    shared = {name: params[name] for name in global_layers}
    local = [{name: params[name] for name in local_layers} for _ in clients]
    have_trained = frozenset()
    for t, cohort in enumerate(cohorts):
        have_trained |= set(cohort)
        messages, new_local, weights = [], [], []
        for i in cohort:
            trained = train(local[i] | shared, list(params), clients[i].x, clients[i].y, steps(t, i), sgd)
            messages.append({name: trained[name] for name in global_layers})
            local[i] = {name: trained[name] for name in local_layers}
            new_local.append(local[i])
            weights.append(weight(client_weighting, clients[i]))
        shared = mean(messages, weights)
        yield State(shared, mean(new_local, weights), list(local), have_trained)


def own_accuracy(state, i, client):
    """The client's own local layers under the global ones."""
    return mlp.accuracy(state.local[i] | state.shared, client.x_test, client.y_test)


def own_or_mean_accuracy(state, i, client):
    """The same, with the mean local layers for a client that has never taken part."""
    local = state.local[i] if i in state.trained else state.mean_local
    return mlp.accuracy(local | state.shared, client.x_test, client.y_test)


def fine_tuned_accuracy(state, client, steps, sgd):
    """The mean local layers, trained on the client under frozen global ones."""
    tuned = train(state.mean_local | state.shared, list(state.mean_local), client.x, client.y, steps, sgd)
    return mlp.accuracy(tuned, client.x_test, client.y_test)
