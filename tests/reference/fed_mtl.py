"""Fed-MTL with constant relations, in NumPy: W and Omega as matrices, a column of W for each client."""

import numpy as np
from reference import mlp
from reference.local import combine, train


def flat(params):
    """(d,): all of a model's parameters."""
    return np.concatenate(
        [w.ravel() for layer in params.values() for w in layer.values()]
    )


def unflat(vector, like):
    """Inverse of `flat`."""
    sizes = [w.size for layer in like.values() for w in layer.values()]
    pieces = iter(np.split(vector, np.cumsum(sizes)[:-1]))
    return {
        name: {part: next(pieces).reshape(w.shape) for part, w in layer.items()}
        for name, layer in like.items()
    }


def penalty(columns, relation, norm):
    """l1 tr(W Omega W^T) + l2 |W|^2 and its gradient in W, with Omega = (I - 11^T / N)^2."""
    centring = np.eye(columns.shape[1]) - 1 / columns.shape[1]
    omega = centring @ centring
    value = relation * np.trace(columns @ omega @ columns.T) + norm * np.sum(columns**2)
    return value, 2 * relation * columns @ omega + 2 * norm * columns


def run(params, clients, cohorts, steps, *, relation, norm, sgd):
    """Yields the models of all clients after every round; `steps(t, i)` are the rows of client i's batches."""
    models = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        before = np.stack([flat(model) for model in models], axis=1)
        for i in cohort:

            def gradient(local, x, y, i=i, others=before):
                columns = others.copy()
                columns[:, i] = flat(local)
                own = unflat(penalty(columns, relation, norm)[1][:, i], local)
                return combine(np.add, mlp.gradient(local, x, y), own)

            models[i] = train(
                models[i],
                list(params),
                clients[i].x,
                clients[i].y,
                steps(t, i),
                sgd,
                gradient,
            )
        yield list(models)
