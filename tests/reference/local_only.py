"""Local training without a server, in NumPy: a client continues from its own model when it takes part."""

from types import SimpleNamespace

from reference.local import train


def run(params, clients, cohorts, steps, *, sgd):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    models = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            models[i] = train(
                models[i], list(params), clients[i].x, clients[i].y, steps(t, i), sgd
            )
        squares = [
            sum((w**2).sum() for layer in models[i].values() for w in layer.values())
            for i in cohort
        ]
        yield SimpleNamespace(
            models=list(models), square_norm=sum(squares) / len(squares)
        )
