"""FedPer (Arivazhagan et al., 2019), in NumPy: every step moves the shared and the personal layers together.

With the lower layers for the personal ones it is LG-FedAvg (Liang et al., 2020).
"""

from reference.fedrep import State
from reference.local import mean, train, weight


def run(params, clients, cohorts, steps, *, own, sgd, client_weighting="uniform"):
    """Yields the state after every round; `own` names the personal layers, `steps(t, i)` are rows of batches."""
    shared = {name: layer for name, layer in params.items() if name not in own}
    state = State(
        shared,
        {},
        [{name: params[name] for name in own} for _ in clients],
        frozenset(),
        list(params),
    )
    for t, cohort in enumerate(cohorts):
        models, of_clients = {}, list(state.own)
        for i in cohort:
            models[i] = train(
                state.model_with(state.own[i]),
                list(params),
                clients[i].x,
                clients[i].y,
                steps(t, i),
                sgd,
            )
            of_clients[i] = {name: models[i][name] for name in own}
        average = mean(
            list(models.values()), [weight(client_weighting, clients[i]) for i in cohort]
        )
        shared, mean_own = (
            {name: average[name] for name in names} for names in (shared, own)
        )
        state = State(
            shared, mean_own, of_clients, state.trained | set(cohort), list(params)
        )
        yield state
