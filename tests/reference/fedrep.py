"""FedRep (Collins et al., 2021), Algorithm 1, in NumPy: one client after the other."""

from typing import NamedTuple

from reference import mlp
from reference.local import mean, no_momentum, train, weight


class State(NamedTuple):
    """State after a round of a method with personal layers."""

    shared: dict
    mean_own: dict  # mean of the cohort's personal layers, for evaluations that fine-tune
    own: list
    trained: frozenset  # ids of the clients that have taken part
    layers: list  # names of all layers, in their order

    def model_with(self, own):
        """The model with the shared layers and these personal ones."""
        return {name: (self.shared | own)[name] for name in self.layers}


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    own,
    head_steps,
    sgd,
    head_sgd,
    alternations=1,
    client_weighting="uniform",
    as_in_the_code_of_srpfl=False,
):
    """Yields the state after every round; `own` names the layers of the head.

    `head_steps(t, i, a)` are the rows of the batches that client i takes for its head in alternation a of round t, and
    `steps(t, i, a)` those for the representation.

    The code of SRPFL's authors has one optimizer for a client's round, whose momentum goes on from alternation to
    alternation, and the heads of all clients that have not trained yet are one dict, that of the global network: the
    server loads the mean head of every cohort into it.
    """
    phi = {name: layer for name, layer in params.items() if name not in own}
    heads, trained = [{name: params[name] for name in own} for _ in clients], frozenset()
    for t, cohort in enumerate(cohorts):
        trained |= set(cohort)
        messages = []
        for i in cohort:
            local = phi | heads[i]
            examples = clients[i].x, clients[i].y
            momentum = {}
            if as_in_the_code_of_srpfl:
                momentum = {
                    "own": no_momentum(local, own),
                    "phi": no_momentum(local, list(phi)),
                }
            for a in range(alternations):
                # lines 7, 8: tau_h updates of h_i, phi frozen
                local = train(
                    local,
                    own,
                    *examples,
                    head_steps(t, i, a),
                    head_sgd,
                    buffers=momentum.get("own"),
                )
                # lines 9 to 11: tau_phi updates of phi_i, the new h_i frozen
                local = train(
                    local,
                    list(phi),
                    *examples,
                    steps(t, i, a),
                    sgd,
                    buffers=momentum.get("phi"),
                )
            messages.append({name: local[name] for name in phi})
            heads[i] = {name: local[name] for name in own}
        # line 16: phi <- mean of the phi_i
        weights = [weight(client_weighting, clients[i]) for i in cohort]
        phi = mean(messages, weights)
        mean_head = mean([heads[i] for i in cohort], weights)
        if as_in_the_code_of_srpfl:
            heads = [heads[i] if i in trained else mean_head for i in range(len(clients))]
        yield State(phi, mean_head, list(heads), trained, list(params))


def own_accuracy(state, i, client):
    """Accuracy of the shared layers with the client's personal ones."""
    return mlp.accuracy(state.model_with(state.own[i]), client.x_test, client.y_test)


def own_or_mean_accuracy(state, i, client):
    """Same as `own_accuracy`, with the mean personal layers for a client that has never taken part."""
    own = state.own[i] if i in state.trained else state.mean_own
    return mlp.accuracy(state.model_with(own), client.x_test, client.y_test)


def fine_tuned_accuracy(state, client, steps, sgd):
    """Accuracy of the mean personal layers after training on the client with frozen shared layers."""
    tuned = train(
        state.model_with(state.mean_own),
        list(state.mean_own),
        client.x,
        client.y,
        steps,
        sgd,
    )
    return mlp.accuracy(tuned, client.x_test, client.y_test)
