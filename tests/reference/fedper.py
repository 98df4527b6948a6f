"""FedPer (Arivazhagan et al., 2019), in NumPy: every step moves the shared and the personal layers together."""

from reference.fedrep import State
from reference.local import mean, train, weight


def run(params, head_layers, clients, cohorts, steps, *, sgd, client_weighting="uniform"):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    base_layers = [name for name in params if name not in head_layers]
    base = {name: params[name] for name in base_layers}
    heads = [{name: params[name] for name in head_layers} for _ in clients]
    trained = frozenset()
    for t, cohort in enumerate(cohorts):
        trained |= set(cohort)
        models = [train(base | heads[i], list(params), clients[i].x, clients[i].y, steps(t, i), sgd) for i in cohort]
        weights = [weight(client_weighting, clients[i]) for i in cohort]
        for i, model in zip(cohort, models, strict=True):
            heads[i] = {name: model[name] for name in head_layers}
        base = mean([{name: model[name] for name in base_layers} for model in models], weights)
        yield State(base, mean([heads[i] for i in cohort], weights), list(heads), trained)
