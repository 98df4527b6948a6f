"""Every client alone, in NumPy: it goes on with its own model whenever it takes part."""

from reference import mlp
from reference.local import train


def run(params, clients, cohorts, steps, *, sgd):
    """Yields the models of all clients after every round; `steps(t, i)` are the rows of client i's batches."""
    models = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            models[i] = train(models[i], list(params), clients[i].x, clients[i].y, steps(t, i), sgd)
        yield list(models)


def own_accuracy(models, i, client):
    """Of the client's own model."""
    return mlp.accuracy(models[i], client.x_test, client.y_test)


def tuned_accuracy(models, layers, i, client, steps, sgd):
    """Of the client's own model after training the named layers on the client."""
    tuned = train(models[i], layers, client.x, client.y, steps, sgd)
    return mlp.accuracy(tuned, client.x_test, client.y_test)
