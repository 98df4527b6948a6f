"""FedCP (Zhang et al., 2023) in NumPy, without noise: the policy is a layer beside the model."""

from types import SimpleNamespace

import numpy as np
from reference import mlp
from reference.gpfl import normalize, normalize_backward
from reference.local import combine, mean, train, weight

POLICY = "policy"
BANDWIDTHS = 10, 15, 20, 50


def model_of(parts):
    return {name: layer for name, layer in parts.items() if name != POLICY}


def direction(head):
    rows = head["kernel"].sum(axis=1)
    return rows / np.linalg.norm(rows)


class Divided:
    """Features divided among the own head and the global one."""

    def __init__(self, policy, own, shared, features, towards):
        self.policy, self.own, self.shared = policy, own, shared
        self.features, self.towards = features, towards
        self.seen = features * towards
        dense = self.seen @ policy["kernel"] + policy["bias"]
        self.normal, self.kept = normalize(policy, dense)
        first, second = np.split(np.maximum(self.normal, 0), 2, axis=1)
        self.share = np.exp(first) / (np.exp(first) + np.exp(second))
        self.logits = (self.share * features) @ own["kernel"] + own["bias"]
        rest = (1 - self.share) * features
        self.logits = self.logits + rest @ shared["kernel"] + shared["bias"]

    def backward(self, delta):
        """Gradients in the own head, in the policy and in the features."""
        of_head = {
            "kernel": (self.share * self.features).T @ delta,
            "bias": delta.sum(axis=0),
        }
        at_own = delta @ self.own["kernel"].T
        at_shared = delta @ self.shared["kernel"].T
        at_features = self.share * at_own + (1 - self.share) * at_shared
        at_share = (at_own - at_shared) * self.features
        at_first = at_share * self.share * (1 - self.share)
        at = np.concatenate([at_first, -at_first], axis=1) * (self.normal > 0)
        of_policy, at = normalize_backward(self.policy, self.kept, at)
        of_policy |= {"kernel": self.seen.T @ at, "bias": at.sum(axis=0)}
        return (
            of_head,
            of_policy,
            at_features + at @ self.policy["kernel"].T * self.towards,
        )


def at_discrepancy(a, b):
    """Gradient in a of the mean of k(a, a) + k(b, b) - 2 k(a, b) over all pairs."""
    found = np.zeros_like(a)
    for other, factor in ((a, 1), (b, -1)):
        apart = a[:, None] - other[None]
        squares = (apart**2).sum(axis=2)
        for bandwidth in BANDWIDTHS:
            kernel = np.exp(-squares / (2 * bandwidth))
            slopes = -kernel[:, :, None] * apart / bandwidth
            found += 2 * factor * slopes.sum(axis=1) / len(a) ** 2
    return found


def separated(shared, towards, penalty):
    """The gradient of all parts; `shared` is the downloaded model."""

    def gradient(parts, x, y):
        params = model_of(parts)
        *_, head = params
        inputs, _ = mlp.forward(params, x)
        downloaded = mlp.forward(shared, x)[0][-1]
        both = Divided(parts[POLICY], params[head], shared[head], inputs[-1], towards)
        delta = mlp.at_logits(both.logits, y)
        of_head, of_policy, at_features = both.backward(delta)
        at_features = at_features + penalty * at_discrepancy(inputs[-1], downloaded)
        gradients = mlp.backward(params, inputs, np.zeros_like(delta), at_features)
        return gradients | {head: of_head, POLICY: of_policy}

    return gradient


def run(
    params,
    clients,
    cohorts,
    steps,
    *,
    policy,
    penalty,
    sgd,
    client_weighting="uniform",
):
    """Yields the shared parts and the clients' heads after every round; `policy` is the first one."""
    *_, head = params
    heads = [params[head] for _ in clients]
    for t, cohort in enumerate(cohorts):
        sent = []
        for i in cohort:
            x, y = clients[i].x, clients[i].y
            gradient = separated(params, direction(heads[i]), penalty)
            start = params | {head: heads[i], POLICY: policy}
            parts = train(start, list(start), x, y, steps(t, i), sgd, gradient)
            heads[i] = parts[head]
            middle = {head: parts[head]}, {head: params[head]}
            sent.append(parts | combine(lambda own, w: (own + w) / 2, *middle))
        parts = mean(sent, [weight(client_weighting, clients[i]) for i in cohort])
        params, policy = model_of(parts), parts[POLICY]
        yield SimpleNamespace(params=params, policy=policy, heads=list(heads))


def own_accuracy(state, i, client, tuning, sgd):
    """Accuracy of both heads together."""
    *_, head = state.params
    features = mlp.forward(state.params, client.x_test)[0][-1]
    towards = direction(state.heads[i])
    shared = state.params[head]
    both = Divided(state.policy, state.heads[i], shared, features, towards)
    return np.mean(both.logits.argmax(axis=1) == client.y_test)
