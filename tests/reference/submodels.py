"""HeteroFL, FedRolex and FjORD in NumPy: submodels are cut out of the arrays, trained, and put back."""

import math

import numpy as np
from reference import mlp
from reference.local import combine, train


def units_of(params, rate, first=0):
    """Output units of each layer in a submodel of this rate; the last layer has all of them."""
    names = list(params)
    found = {}
    for name in names:
        width = params[name]["kernel"].shape[1]
        number = width if name == names[-1] else math.ceil(round(rate * width, 6))
        found[name] = (
            [(first + place) % width for place in range(number)]
            if name != names[-1]
            else [*range(width)]
        )
    return found


def indices_of(params, units):
    """Yields, for every layer, the indices of a submodel in its arrays; rows of kernels are the units below."""
    below = [*range(next(iter(params.values()))["kernel"].shape[0])]
    for name in params:
        yield name, {"kernel": np.ix_(below, units[name]), "bias": units[name]}
        below = units[name]


def cut(params, units):
    """The submodel of these units."""
    return {
        name: {leaf: params[name][leaf][at] for leaf, at in of.items()}
        for name, of in indices_of(params, units)
    }


def scaled(params, factor):
    """Kernels above the first layer times a factor, as if outputs of hidden units were."""
    first = next(iter(params))
    return {
        n: {"kernel": la["kernel"] * (1.0 if n == first else factor), "bias": la["bias"]}
        for n, la in params.items()
    }


def scaler_gradient(rate):
    """Gradient of a narrow model whose hidden units are multiplied by 1 / rate."""
    return lambda params, x, y: scaled(
        mlp.gradient(scaled(params, 1 / rate), x, y), 1 / rate
    )


def averaged(params, parts, weights):
    """Each parameter's mean over the clients that have it; `parts` are (units, submodel)."""
    sums, counts = combine(np.zeros_like, params), combine(np.zeros_like, params)
    for (units, small), weight in zip(parts, weights, strict=True):
        for name, of_layer in indices_of(params, units):
            for leaf, at in of_layer.items():
                sums[name][leaf][at] += weight * small[name][leaf]
                counts[name][leaf][at] += weight
    return combine(
        lambda w, s, n: np.divide(s, n, out=w.copy(), where=n > 0), params, sums, counts
    )


def client(params, rate, first, x, y, rows_of_steps, sgd):
    """(units, submodel) after local training with the Scaler."""
    units = units_of(params, rate, first)
    small = cut(params, units)
    return units, train(
        small, list(small), x, y, rows_of_steps, sgd, scaler_gradient(rate)
    )


def nested_gradient(whole, rates_of_steps):
    """Gradient of FjORD's steps, in turn: that of a submodel of the whole model at each rate, zeros elsewhere."""
    rates = iter(rates_of_steps)

    def gradient_of(params, x, y):
        units, padded = units_of(whole, next(rates)), combine(np.zeros_like, params)
        small = mlp.gradient(cut(params, units), x, y)
        for name, of_layer in indices_of(params, units):
            for leaf, at in of_layer.items():
                padded[name][leaf][at] = small[name][leaf]
        return padded

    return gradient_of
