"""Clients of unequal sizes, and the cost of a step of small models, counted by hand."""

import itertools

import numpy as np
from reference.small import NUM_CLASSES, NUM_FEATURES, clients_of, federation, model

import fedjax_srp as srp

LENET = srp.models.LeNet5((18, 18), 4, channels=(3, 4), hidden=(6, 5))
UNIT = srp.clocks.Devices(compute=1.0, downlink=1.0, uplink=1.0)


def of_model(name, counts):
    """Return a model, and data of clients with these numbers of examples."""
    if name == "mlp":
        return model(), federation(clients_of(counts, (2,) * len(counts)))
    rng, places = np.random.default_rng(0), np.arange(sum(counts))
    x, tests = (
        rng.random((number, 18, 18), np.float32) for number in (sum(counts), len(counts))
    )
    dealt = {
        "train_indices": np.split(places, np.cumsum(counts)[:-1]),
        "test_indices": places[: len(counts), None],
    }
    return LENET, srp.data.from_arrays(
        x, places % 4, tests, np.arange(len(counts)) % 4, **dealt
    )


def dense(*widths):
    """Return (forward operations of an example, parameters), each a list over layers of these widths."""
    pairs = [*itertools.pairwise(widths)]
    return [2 * m * n for m, n in pairs], [(m + 1) * n for m, n in pairs]


def mlp(first, second):
    """Return the operations and parameters of an MLP with hidden layers of these widths."""
    return dense(NUM_FEATURES, first, second, NUM_CLASSES)


def lenet(conv1, conv2, fc1, fc2):
    """Return those of LeNet-5 on 18 x 18: kernels of 5 x 5 and pooling, 18 -> 14 -> 7 -> 3 -> 1."""
    operations, sizes = dense(conv2, fc1, fc2, 4)
    convolutions = [2 * 14**2 * 25 * conv1, 2 * 3**2 * 25 * conv1 * conv2]
    return convolutions + operations, [26 * conv1, (25 * conv1 + 1) * conv2, *sizes]


def of_step(operations):
    """Return an example's operations: forward, backward to weights, and to inputs except for the first layer."""
    return 3 * sum(operations) - operations[0]
