"""The tables of updates of MIFA (Gu et al., 2021) and FedVARP (Jhunjhunwala et al., 2022), Algorithms 1, in NumPy."""

from types import SimpleNamespace

import numpy as np
from reference.local import combine, mean, train


def mifa(params, clients, cohorts, steps, *, sgd):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    table = {}  # of clients that have taken part
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            model = train(
                params, list(params), clients[i].x, clients[i].y, steps(t, i), sgd
            )
            table[i] = combine(np.subtract, model, params)
        params = combine(np.add, params, mean(list(table.values()), [1.0] * len(table)))
        yield SimpleNamespace(params=params, table=filled(table, params, len(clients)))


def fedvarp(params, clients, cohorts, steps, *, sgd, server_step=1.0):
    """Yields the state after every round; `steps(t, i)` are the rows of client i's batches."""
    table = filled({}, params, len(clients))
    for t, cohort in enumerate(cohorts):
        everybody = mean(table, [1.0] * len(clients))
        remembered = mean([table[i] for i in cohort], [1.0] * len(cohort))
        for i in cohort:
            model = train(
                params, list(params), clients[i].x, clients[i].y, steps(t, i), sgd
            )
            table[i] = combine(np.subtract, model, params)
        update = mean([table[i] for i in cohort], [1.0] * len(cohort))
        step = combine(
            lambda new, old, y: server_step * (new - old + y),
            update,
            remembered,
            everybody,
        )
        params = combine(np.add, params, step)
        yield SimpleNamespace(params=params, table=list(table))


def filled(table, params, num_clients):
    """The table as a list, zero for clients that have not taken part."""
    return [table.get(i, combine(np.zeros_like, params)) for i in range(num_clients)]
