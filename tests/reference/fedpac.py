"""FedPAC (Xu, Tong and Huang, 2023), Algorithm 1, in NumPy; the last layer is the head."""

import itertools
from types import SimpleNamespace

import numpy as np
from reference import fedproto, mlp
from reference.local import mean, train, weight


def best_mixture(costs):
    """The minimum of a^T P a over the simplex, the best of all supports."""
    n, best = len(costs), None
    for size in range(1, n + 1):
        for support in map(list, itertools.combinations(range(n), size)):
            # P a = mu 1 and 1^T a = 1 on the support
            system = np.block(
                [
                    [costs[np.ix_(support, support)], -np.ones((size, 1))],
                    [np.ones((1, size)), np.zeros((1, 1))],
                ]
            )
            a = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0][
                :size
            ]
            if (a >= 0).all() and abs(a.sum() - 1) < 1e-9:
                whole = np.zeros(n)
                whole[support] = a
                if best is None or whole @ costs @ whole < best @ costs @ best:
                    best = whole
    return best


def statistics(params, client, num_classes):
    """(classes, features) p_y E[f | y], and V: per class p_y tr(E[f f^T | y]) - p_y^2 |E[f | y]|^2, over n."""
    features = mlp.forward(params, client.x)[0][-1]
    means, variance = np.zeros((num_classes, features.shape[1])), 0.0
    for c in range(num_classes):
        of_class = features[client.y == c]
        if len(of_class):
            p = len(of_class) / len(client.y)
            means[c] = p * of_class.mean(axis=0)
            variance += p * np.trace(
                of_class.T @ of_class / len(of_class)
            ) - p**2 * np.sum(of_class.mean(axis=0) ** 2)
    return means, variance / len(client.y)


def mixtures(means, variances):
    """The weights of every participant."""
    n, found = len(means), []
    for i in range(n):
        costs = np.diag(variances)
        for j, k in itertools.product(range(n), repeat=2):
            costs[j, k] += np.sum((means[i] - means[j]) * (means[i] - means[k]))
        found.append(best_mixture(costs))
    return found


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    head_steps,
    num_classes,
    penalty,
    sgd,
    client_weighting="uniform",
):
    """Yields the state after every round; `head_steps(t, i)` and `steps(t, i)` are the rows of client i's batches."""
    *body, last = list(params)
    heads, centroids = [params[last] for _ in clients], {}
    for t, cohort in enumerate(cohorts):
        models, means, variances, own = [], [], [], {}
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            local = params | {last: heads[i]}
            h, v = statistics(local, clients[i], num_classes)
            means.append(h)
            variances.append(v)
            local = train(local, [last], x, y, head_steps(t, i), sgd)

            def aligned(w, x, y, centroids=centroids):
                return fedproto.gradient(w, x, y, centroids, penalty)

            local = train(local, body, x, y, steps(t, i), sgd, aligned)
            models.append(local)
            features = mlp.forward(local, x)[0][-1]
            for c in np.unique(y):
                own.setdefault(int(c), []).append(
                    (features[y == c].mean(axis=0), float((y == c).sum()))
                )
        new = {
            c: sum(w * p for p, w in found) / sum(w for _, w in found)
            for c, found in own.items()
        }
        centroids = centroids | new
        params = mean(models, [weight(client_weighting, clients[i]) for i in cohort])
        for i, a in zip(cohort, mixtures(means, variances), strict=True):
            heads[i] = {
                part: sum(w * m[last][part] for w, m in zip(a, models, strict=True))
                for part in params[last]
            }
        yield SimpleNamespace(params=params, centroids=centroids, heads=list(heads))
