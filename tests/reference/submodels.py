"""HeteroFL, FedRolex and FjORD in NumPy: submodels are cut out of the arrays, trained, and put back."""

import math

import numpy as np
from reference import mlp
from reference.local import train


def units_of(params, rate, first=0):
    """Which units of each layer's output a submodel of this rate has; all of the last layer's."""
    names = list(params)
    found = {}
    for name in names:
        width = params[name]["kernel"].shape[1]
        number = width if name == names[-1] else math.ceil(round(rate * width, 6))
        found[name] = [(first + place) % width for place in range(number)] if name != names[-1] else [*range(width)]
    return found


def cut(params, units):
    """The submodel: rows of the units below, columns of its own."""
    small, below = {}, None
    for name, layer in params.items():
        rows = [*range(layer["kernel"].shape[0])] if below is None else below
        small[name] = {"kernel": layer["kernel"][np.ix_(rows, units[name])], "bias": layer["bias"][units[name]]}
        below = units[name]
    return small


def scaled(params, factor):
    """Kernels above the first layer times a factor: hidden units that give so much more."""
    first = next(iter(params))
    return {
        n: {"kernel": la["kernel"] * (1.0 if n == first else factor), "bias": la["bias"]} for n, la in params.items()
    }


def scaler_gradient(rate):
    """Gradient of a narrow model whose hidden units give 1 / rate as much."""
    return lambda params, x, y: scaled(mlp.gradient(scaled(params, 1 / rate), x, y), 1 / rate)


def averaged(params, parts, weights):
    """Each parameter's mean over the clients that have it; `parts` are (units, submodel)."""
    new = {name: {leaf: w.copy() for leaf, w in layer.items()} for name, layer in params.items()}
    sums = {n: {leaf: np.zeros_like(w) for leaf, w in layer.items()} for n, layer in params.items()}
    counts = {n: {leaf: np.zeros_like(w) for leaf, w in layer.items()} for n, layer in params.items()}
    for (units, small), weight in zip(parts, weights, strict=True):
        below = None
        for name, layer in params.items():
            rows = [*range(layer["kernel"].shape[0])] if below is None else below
            for place, row in enumerate(rows):
                for other, column in enumerate(units[name]):
                    sums[name]["kernel"][row, column] += weight * small[name]["kernel"][place, other]
                    counts[name]["kernel"][row, column] += weight
            for other, column in enumerate(units[name]):
                sums[name]["bias"][column] += weight * small[name]["bias"][other]
                counts[name]["bias"][column] += weight
            below = units[name]
    for name, layer in new.items():
        for leaf, w in layer.items():
            has = counts[name][leaf] > 0
            w[has] = sums[name][leaf][has] / counts[name][leaf][has]
    return new


def client(params, rate, first, x, y, rows_of_steps, sgd):
    """(units, submodel) after local training with the Scaler."""
    units = units_of(params, rate, first)
    small = cut(params, units)
    return units, train(small, list(small), x, y, rows_of_steps, sgd, scaler_gradient(rate))


def nested_gradient(widths, rates_of_steps):
    """Gradient of FjORD's steps, in turn: that of a submodel of each rate, zeros elsewhere; `widths` of the whole."""
    rates = iter(rates_of_steps)

    def gradient_of(params, x, y):
        rate, units, last = next(rates), {}, list(params)[-1]
        for name in params:
            number = widths[name] if name == last else math.ceil(round(rate * widths[name], 6))
            units[name] = [*range(number)]
        small = mlp.gradient(cut(params, units), x, y)
        padded = {}
        for name, layer in params.items():
            kernel, bias = np.zeros_like(layer["kernel"]), np.zeros_like(layer["bias"])
            rows, columns = small[name]["kernel"].shape
            kernel[:rows, :columns], bias[:columns] = small[name]["kernel"], small[name]["bias"]
            padded[name] = {"kernel": kernel, "bias": bias}
        return padded

    return gradient_of
