"""A multi-layer perceptron in NumPy: forward pass, cross-entropy and its gradient, written by hand.

Parameters are `{layer: {"kernel": (inputs, outputs), "bias": (outputs,)}}`; layers are applied in the order of the
dict, with ReLU between them and nothing after the last.
"""

import numpy as np


def forward(params, x):
    """Inputs of every layer, and the logits."""
    inputs, h = [], x.reshape(len(x), -1)
    for i, layer in enumerate(params.values()):
        inputs.append(h)
        h = h @ layer["kernel"] + layer["bias"]
        if i < len(params) - 1:
            h = np.maximum(h, 0)
    return inputs, h


def log_probabilities(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def loss(params, x, y):
    """Mean cross-entropy of a batch."""
    return -log_probabilities(forward(params, x)[1])[np.arange(len(y)), y].mean()


def at_logits(logits, y):
    """Gradient of `loss` in the logits: (softmax - one hot) / batch."""
    delta = np.exp(log_probabilities(logits))
    delta[np.arange(len(y)), y] -= 1
    return delta / len(y)


def backward(params, inputs, delta, at_features=0.0):
    """Gradient of a loss whose gradient is `delta` in the logits and `at_features` in the input of the last layer."""
    gradients, last = {}, list(params)[-1]
    for name, h in zip(reversed(params), reversed(inputs), strict=True):
        gradients[name] = {"kernel": h.T @ delta, "bias": delta.sum(axis=0)}
        delta = delta @ params[name]["kernel"].T + (at_features if name == last else 0.0)
        delta = delta * (h > 0)  # h is the ReLU of the layer below
    return {name: gradients[name] for name in params}


def gradient(params, x, y):
    """Gradient of `loss`, in the shape of `params`."""
    inputs, logits = forward(params, x)
    return backward(params, inputs, at_logits(logits, y))


def accuracy(params, x, y):
    """Fraction of a client's examples that are classified correctly."""
    return np.mean(forward(params, x)[1].argmax(axis=1) == y)
