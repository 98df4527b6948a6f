"""Three rounds whose clients train a part of a model by their units of work: some units, blocks or ranks."""

from typing import NamedTuple

import numpy as np
from recorded_orders import RecordedOrders
from reference.local import Sgd, batches, weight
from reference.small import KEY, clients_of, scripted

import fedjax_srp as srp

COUNTS, TEST_COUNTS = (4, 3, 7, 5, 8), (2, 2, 2, 2, 2)
BATCH, EPOCHS, SGD = 3, 2, Sgd(0.3, momentum=0.5, decay=0.01)
IDS, SIZES = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [1, 3, 4, 0, 2]], [4, 2, 3]
# of three parts: 9 units are all of them, and in the second round nobody has all
WORK = [[3, 1, 2, 1, 1], [1, 2, 1, 1, 1], [1, 9, 2, 1, 1]]
NUM_ROUNDS = len(SIZES)


class Participant(NamedTuple):
    """A client in a round, with the rows of its batches."""

    id: int
    work: int
    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]
    weight: float


def policy(work=WORK):
    return scripted(IDS, SIZES, work)


def clients(dtype=np.float64):
    return clients_of(COUNTS, TEST_COUNTS, dtype=dtype)


def training(weighting="uniform", sgd=SGD):
    optimizer = srp.SGD(sgd.step, sgd.momentum, sgd.decay or None)
    return srp.Training(optimizer, batch_size=BATCH, epochs=EPOCHS, weighting=weighting)


def participants(t, clients, weighting="uniform"):
    """Return the participants of round t."""
    orders = RecordedOrders(KEY, COUNTS, BATCH)
    found = []
    for i, work in zip(IDS[t][: SIZES[t]], WORK[t][: SIZES[t]], strict=True):
        rows = [*batches(orders.epochs(t, i, "local", EPOCHS), BATCH)]
        of_client = clients[i].x, clients[i].y, rows, weight(weighting, clients[i])
        found.append(Participant(i, work, *of_client))
    return found
