"""FedRep (Collins et al., 2021), Algorithm 1, in NumPy: one client after the other."""

from typing import NamedTuple

from reference import mlp
from reference.local import mean, train, weight


class State(NamedTuple):
    """phi, the mean of the cohort's heads (for evaluations that fine-tune) and the head of every client."""

    representation: dict
    mean_head: dict
    heads: list
    trained: frozenset  # ids of the clients that have taken part


def run(
    params,
    head_layers,
    clients,
    cohorts,
    head_steps,
    steps,
    *,
    sgd,
    head_sgd=None,
    alternations=1,
    client_weighting="uniform",
):
    """Yields the state after every round.

    `head_steps(t, i, a)` are the rows of the batches that client i takes for its head in alternation a of round t, and
    `steps(t, i, a)` those for the representation. `head_sgd` trains heads, by default as `sgd` does the representation.
    """
    head_sgd = sgd if head_sgd is None else head_sgd
    representation_layers = [name for name in params if name not in head_layers]
    representation = {name: params[name] for name in representation_layers}
    heads = [{name: params[name] for name in head_layers} for _ in clients]
    trained = frozenset()
    for t, cohort in enumerate(cohorts):
        trained |= set(cohort)
        messages, new_heads, weights = [], [], []
        for i in cohort:
            local = representation | heads[i]
            for a in range(alternations):
                # lines 7, 8: tau_h updates of h_i, phi frozen
                local = train(local, head_layers, clients[i].x, clients[i].y, head_steps(t, i, a), head_sgd)
                # lines 9 to 11: tau_phi updates of phi_i, the new h_i frozen
                local = train(local, representation_layers, clients[i].x, clients[i].y, steps(t, i, a), sgd)
            messages.append({name: local[name] for name in representation_layers})
            heads[i] = {name: local[name] for name in head_layers}
            new_heads.append(heads[i])
            weights.append(weight(client_weighting, clients[i]))
        # line 16: phi <- mean of the phi_i
        representation = mean(messages, weights)
        yield State(representation, mean(new_heads, weights), list(heads), trained)


def own_head_accuracy(state, i, client):
    """The current representation under the client's own head."""
    return mlp.accuracy(state.representation | state.heads[i], client.x_test, client.y_test)


def own_or_mean_accuracy(state, i, client):
    """The same, with the mean head for a client that has never taken part."""
    head = state.heads[i] if i in state.trained else state.mean_head
    return mlp.accuracy(state.representation | head, client.x_test, client.y_test)


def fine_tuned_accuracy(state, client, steps, sgd):
    """The current representation under the mean head, trained on the client."""
    tuned = train(state.representation | state.mean_head, list(state.mean_head), client.x, client.y, steps, sgd)
    return mlp.accuracy(tuned, client.x_test, client.y_test)
