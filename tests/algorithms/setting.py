"""Runs of the package to compare with NumPy references: clients of unequal sizes and work, in float64."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from recorded_orders import RecordedOrders, stream
from reference.local import Sgd, batches
from reference.small import KEY, Run, clients_of, federation, model, scripted

import fedjax_srp as srp
from fedjax_srp.algorithms.examples import GlobalModel, OwnModel

COUNTS, TEST_COUNTS = (1, 3, 7, 5, 12, 2, 9), (4, 9, 1, 6, 5, 8, 3)
NUM_CLIENTS, BATCH, EPOCHS, TUNING = len(COUNTS), 4, 2, 3
PLAIN, HEAVY = Sgd(0.3), Sgd(0.2, momentum=0.6, decay=0.05)
SMALL = functools.partial(clients_of, COUNTS, TEST_COUNTS, dtype=np.float64)
SPREAD = {"devices": 2, "chunk_size": 2}
INHERITED = GlobalModel.fine_tune, GlobalModel.fine_tune_all, OwnModel.fine_tune

# For tests of limits: plain steps on full batches, or SGD with momentum and decay; times that change every round.
FULL = {"batch_size": 99, "optimizer": srp.SGD(0.3)}
HEAVY_STEPS = {"batch_size": BATCH, "optimizer": srp.SGD(0.3, 0.5, 0.01)}
EVERYBODY = srp.participation.Full()
CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))


class Rounds(NamedTuple):
    """Participants of each round, in the order of the cohort, with their units of work."""

    ids: Any
    sizes: Any
    work: Any
    stages: Any = None

    @property
    def policy(self):
        return scripted(self.ids, self.sizes, self.work, self.stages)

    @property
    def cohorts(self):
        return [
            row[:size].tolist() for row, size in zip(self.ids, self.sizes, strict=True)
        ]

    def work_of(self, t, i):
        return int(self.work[t][self.ids[t] == i][0])


IDS = np.array([[1, 4, 0, 2, 3, 5, 6], [6, 1, 3, 5, 0, 2, 4], [3, 2, 6, 0, 1, 4, 5]])
UNEQUAL = Rounds(
    IDS, (3, 2, 7), 1 + (IDS == 4) + 2 * (IDS == 0)
)  # clients 4 and 0 do two and three units


@functools.cache
def split_model(cut="out"):
    return model(cut=cut, dtype=jnp.float64)


def optimizer(sgd):
    return srp.SGD(sgd.step, sgd.momentum or None, sgd.decay or None)


def by_layer(split_model, *parts):
    """Return parameters of the package as {layer: {part: array}}, in the order of the layers."""
    together = {name: layer for part in parts for name, layer in part.items()}
    return {
        name: jax.tree.map(np.asarray, together[name])
        for name in split_model.layer_names
        if name in together
    }


def layers_of(params):
    return by_layer(split_model(), *jax.device_get(params))


def of_client(states, i):
    return jax.tree.map(lambda leaf: leaf[i], states)


def flat(tree):
    """Return all numbers of a tree in one array, since some leaves may be zero but for rounding."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


class Setting:
    """A run of the package with its state after every round, and the inputs that a reference needs.

    `tuned=False` leaves out the evaluations by fine-tuning that methods inherit from `GlobalModel` and `OwnModel`.
    """

    def __init__(
        self, algorithm, policy, clients, num_rounds=3, key=KEY, tuned=True, **run_options
    ):
        data = federation(clients)
        assert data.x_train.dtype == jnp.float64
        judged = {
            e: f
            for e, f in algorithm.evaluations.items()
            if tuned or f.__func__ not in INHERITED
        }
        run = Run(
            algorithm, data, policy, evaluations=tuple(judged), key=key, **run_options
        )
        self.clients, self.start, self.times = (
            clients,
            run.host_state().server,
            run.client_time,
        )
        self.rounds, self.states, self.accuracies = [], [], []
        for _ in range(num_rounds):
            segment = run.rounds()
            self.rounds.append(jax.tree.map(lambda a: a[0], segment.rounds))
            self.states.append(run.host_state())
            kept = range(len(clients))
            self.accuracies.append(
                {
                    e: total[kept] / count[kept]
                    for e, (total, count) in segment.scores.items()
                }
            )
        self.orders = RecordedOrders(key, [len(c.y) for c in clients], BATCH)
        start = self.start.params if hasattr(self.start, "params") else self.start
        self.params = by_layer(algorithm.model, start.representation, start.head)

    def epochs(self, rounds=UNEQUAL, number=EPOCHS, purpose="local"):
        """Return `(t, i, alternation) -> rows`: batches of `number` epochs per unit of work."""

        def rows(t, i, a=0):
            in_all = number * rounds.work_of(t, i)
            return batches(
                self.orders.epochs(t, i, purpose, in_all, first=a * in_all), BATCH
            )

        return rows

    def steps(self, number):
        """Return `(t, i) -> rows`: `number` batches per unit of work, drawn with replacement."""
        return lambda t, i: self.orders.steps(t, i, number * UNEQUAL.work_of(t, i))

    def tuning(self, num_rounds, i, purpose, epochs):
        return batches(self.orders.tuning(num_rounds, i, purpose, epochs), BATCH)


def run_of(algorithm, clients, policy, rounds=3):
    """Return the initial state and the state after each round, on the host."""
    run = Run(algorithm, federation(clients), policy, CLOCK, chunk_size=3)
    states = [run.host_state()]
    for _ in range(rounds):
        run.rounds()
        states.append(run.host_state())
    return states


def recorded_times(clock, num_clients, num_rounds):
    """Return the clock's times in every round of a run under `KEY`."""
    start = srp.named_key(srp.named_key(KEY, "clock"), "init")
    state = clock.init(start, num_clients)
    found = []
    for t in range(num_rounds):
        key = stream(KEY, "clock", jnp.int32(t))
        times, state = clock.sample(key, state, jnp.zeros(()))
        found.append(times)
    return found
