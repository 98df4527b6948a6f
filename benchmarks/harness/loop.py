"""The rival in JAX: one compiled client update, called from Python for one client after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp.base import (
    Array,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    PyTree,
    RoundContext,
    named_key,
)
from fedjax_srp.rounds.round import stream


class JitLoop:
    """A round like that of most JAX code: the same client and server functions, without vmap or chunks.

    Calls are dispatched asynchronously, and clients are divided among the devices as in the engine. Keys and results
    are those of the engine.

    Args:
        algorithm: its first phase is the round, others are left out.
        data: of the clients.
        num_participants: the first `num_participants` clients take part; None for all.
    """

    def __init__(
        self,
        algorithm: FederatedAlgorithm,
        data: FederatedSource,
        num_participants: int | None = None,
    ):
        if num_participants is None:
            num_participants = data.num_clients
        self.participants = range(num_participants)
        phase = algorithm.phases[0]
        size = jnp.int32(len(self.participants))
        self.devices = jax.local_devices()
        self.data = [jax.device_put(data, device) for device in self.devices]

        def context(index: Any, client_id: Any = None) -> RoundContext:
            return RoundContext(
                index,
                jnp.int32(0),
                size,
                data.num_clients,
                jnp.int32(1),
                client_id=client_id,
            )

        def weighted(output: Any) -> Any:
            multiply = lambda w, part: jax.tree.map(
                lambda m: jnp.asarray(w, m.dtype) * m, part
            )
            message = jax.tree.map(multiply, output.weight, output.message)
            return message, jax.tree.map(lambda w: jnp.asarray(w, float), output.weight)

        def client(
            root: Key,
            broadcast: PyTree,
            state: PyTree,
            data: FederatedSource,
            client_id: Array,
            index: Array,
        ) -> tuple[PyTree, PyTree, PyTree]:
            key_phase = named_key(stream(root, "training", index), phase.name)
            key = jax.random.fold_in(key_phase, client_id)
            output = phase.client(
                key,
                broadcast,
                state,
                data.train_client(client_id),
                context(index, client_id),
            )
            message, weight = weighted(output)
            if output.state is not None:
                state = output.state
            return message, weight, state

        def server(
            root: Key, state: PyTree, total: PyTree, weights: PyTree, index: Array
        ) -> PyTree:
            key = named_key(stream(root, "server", index), phase.name)
            divide = lambda w, part: jax.tree.map(lambda t: t / w.astype(t.dtype), part)
            mean = jax.tree.map(divide, weights, total)
            return phase.server(key, state, mean, context(index))

        self._client = jax.jit(client)
        self._server = jax.jit(server)
        self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=(0,))
        self._broadcast = jax.jit(
            lambda state, index: phase.broadcast(state, context(index))
        )

        def init_client(
            root: Key, server: PyTree, data: FederatedSource, client_id: Array
        ) -> PyTree:
            key_init = named_key(named_key(root, "training"), "init")
            key = jax.random.fold_in(key_init, client_id)
            return algorithm.init_client(key, server, data.train_client(client_id))

        self.root = jax.random.key(0)
        self.round = 0
        key_server = named_key(named_key(self.root, "server"), "init")
        self.server = jax.jit(algorithm.init)(key_server, self.data[0])
        start = jax.jit(init_client)
        self.states = {}
        for i in self.participants:
            state = start(self.root, self.server, self.data[0], jnp.int32(i))
            self.states[i] = jax.device_put(state, self._device(i))
        # It compiles twice: only the second server state is committed to a device.
        for _ in range(2):
            self()

    def _device(self, client: int) -> Any:
        return self.devices[client % len(self.devices)]

    def __call__(self) -> None:
        """Run a round and wait."""
        index = jnp.int32(self.round)
        broadcast = self._broadcast(self.server, index)
        broadcasts = [jax.device_put(broadcast, device) for device in self.devices]
        totals: list[Any] = [None] * len(self.devices)
        for i in self.participants:
            d = i % len(self.devices)
            *message, self.states[i] = self._client(
                self.root,
                broadcasts[d],
                self.states[i],
                self.data[d],
                jnp.int32(i),
                index,
            )
            if totals[d] is not None:
                message = self._add(totals[d], message)
            totals[d] = message
        total, *others = (part for part in totals if part is not None)
        for other in others:
            total = self._add(total, jax.device_put(other, self.devices[0]))
        self.server = self._server(self.root, self.server, *total, index)
        self.round += 1
        jax.block_until_ready((self.server, self.states))
