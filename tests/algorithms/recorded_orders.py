"""Batches that a client of the package takes, from the documented keys (stream, round, phase, id, purpose)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp import named_key
from fedjax_srp.algorithms.local import random_order


def stream(root, name, round):
    """Return the key of a stream of a run in one round, as the manual describes it."""
    return jax.random.fold_in(named_key(root, name), round)


@functools.partial(
    jax.jit, static_argnames=("purpose", "batch_size", "capacity", "num_epochs", "steps")
)
def _draw(key_pass, counts, purpose, batch_size, capacity, num_epochs, steps):
    """(num_clients, num_epochs, rows)."""

    def one(client_id, count, epoch):
        key = named_key(jax.random.fold_in(key_pass, client_id), purpose)
        key = jax.random.fold_in(key, epoch)
        if steps:
            return jax.random.randint(key, (batch_size,), 0, count)
        return random_order(key, count, batch_size, capacity)

    ids, epochs = (
        jnp.arange(counts.shape[0], dtype=jnp.int32),
        jnp.arange(num_epochs, dtype=jnp.int32),
    )
    by_epoch = jax.vmap(one, (None, None, 0))
    return jax.vmap(by_epoch, (0, 0, None))(ids, counts, epochs)


class RecordedOrders:
    """Orders of the examples in a run with this root key on clients of these sizes."""

    def __init__(self, root, counts, batch_size):
        self.root, self.counts, self.capacity = (
            root,
            jnp.asarray(counts, jnp.int32),
            int(max(counts)),
        )
        self.batch_size = min(batch_size, self.capacity)
        self._table = functools.lru_cache(maxsize=None)(self._draw_all)

    def _draw_all(self, stream_name, round_index, phase, purpose, num_epochs, steps):
        key = stream(self.root, stream_name, round_index)
        key = key if phase is None else named_key(key, phase)
        return np.asarray(
            _draw(
                key,
                self.counts,
                purpose,
                self.batch_size,
                self.capacity,
                num_epochs,
                steps,
            )
        )

    def epochs(
        self,
        round_index,
        client,
        purpose,
        number,
        first=0,
        stream_name="training",
        phase="round",
    ):
        """Orders of the client's examples in `number` epochs from epoch `first` on."""
        table = self._table(stream_name, round_index, phase, purpose, 32, False)
        return [
            table[client, e, : int(self.counts[client])]
            for e in range(first, first + number)
        ]

    def tuning(self, num_rounds, client, purpose, number):
        """Orders of the epochs of fine-tuning in the evaluation after `num_rounds` rounds."""
        return self.epochs(num_rounds, client, purpose, number, 0, "evaluation", None)

    def steps(self, round_index, client, number):
        """Rows of `number` batches drawn with replacement."""
        return list(
            self._table("training", round_index, "round", "local", 32, True)[
                client, :number
            ]
        )
