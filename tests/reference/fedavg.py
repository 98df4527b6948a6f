"""FedAvg (McMahan et al., 2017), and FedAvg-FT as in SRPFL's code, in NumPy: one client after the other."""

from reference import mlp
from reference.local import mean, train, weight


def run(params, clients, cohorts, steps, *, sgd, client_weighting="uniform"):
    """Yields the global model after every round.

    `clients[i]` has x, y, x_test and y_test; `cohorts[t]` are the ids of round t; `steps(t, i)` are the rows of the
    batches that client i takes in round t.
    """
    for t, cohort in enumerate(cohorts):
        models = [
            train(params, list(params), clients[i].x, clients[i].y, steps(t, i), sgd)
            for i in cohort
        ]
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        yield params


def global_accuracy(params, client):
    """Accuracy of the global model."""
    return mlp.accuracy(params, client.x_test, client.y_test)


def fine_tuned_accuracy(params, layers, client, steps, sgd):
    """Accuracy after training the named layers on the client."""
    tuned = train(params, layers, client.x, client.y, steps, sgd)
    return mlp.accuracy(tuned, client.x_test, client.y_test)
