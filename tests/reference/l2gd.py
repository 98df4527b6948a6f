"""L2GD (Hanzely and Richtarik, 2020), Algorithm 1 on cohorts and with epochs of SGD, in NumPy."""

from types import SimpleNamespace

from reference.local import combine, mean, train, weight


def run(
    params, clients, cohorts, steps, *, coins, sgd, theta, client_weighting="uniform"
):
    """Yields the state after every round; `coins[t]` says whether round t aggregates, theta is alpha lambda / (n p)."""
    x_bar, own = params, [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        if coins[t]:
            x_bar = mean(
                [own[i] for i in cohort],
                [weight(client_weighting, clients[i]) for i in cohort],
            )
            for i in cohort:
                own[i] = combine(
                    lambda x, x_bar: (1 - theta) * x + theta * x_bar, own[i], x_bar
                )
        else:
            for i in cohort:
                own[i] = train(
                    own[i], list(own[i]), clients[i].x, clients[i].y, steps(t, i), sgd
                )
        yield SimpleNamespace(x_bar=x_bar, own=list(own), aggregated=coins[t])
