"""The state before the first round, in-graph."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import (
    Array,
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    ParticipationPolicy,
    PyTree,
    ServerState,
    named_key,
)
from fedjax_srp.rounds.client_data import owned_client
from fedjax_srp.rounds.round import SimulationState, as_arrays, prepare_server, stream
from fedjax_srp.rounds.sharding import Layout, device_index


class Start(NamedTuple):
    """The state before the first round, and the clients' expected times."""

    state: SimulationState
    client_time: Array  # (num_clients,) expected time of a unit of work


def first_state(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    clock: Clock,
    root: Key,
    data: FederatedSource,
    layout: Layout,
    begin: PyTree | None = None,
) -> Start:
    """The state before the first round, after the phases of the start; these are left out if `begin` is given.

    `begin` is a server state, or its parameters, see `driver.given`. Clients, policy and clock begin as ever.
    """
    server = as_arrays(algorithm.init(named_key(named_key(root, "server"), "init"), data))
    server = begun(algorithm, server, begin)
    clients = init_clients(algorithm, server, root, data, layout)
    key_policy, key_clock = (
        named_key(named_key(root, name), "init") for name in ("participation", "clock")
    )
    policy_state = as_arrays(policy.init(key_policy, layout.num_clients))
    clock_state = as_arrays(clock.init(key_clock, layout.num_clients))
    now, rounds_taken = jnp.zeros(()), jnp.zeros(layout.num_clients, jnp.int32)
    times, _ = as_arrays(
        clock.sample(stream(root, "clock", jnp.int32(0)), clock_state, now)
    )
    state = SimulationState(
        server, clients, policy_state, clock_state, jnp.int32(0), now, rounds_taken
    )
    if begin is None:
        state = prepare_server(algorithm, data, state, root, layout)
    return Start(state, times.expected)


def begun(
    algorithm: FederatedAlgorithm, server: ServerState, start: PyTree | None
) -> ServerState:
    """The server's state of a run that begins from given parameters or a given state, given that of `init`."""
    if start is None:
        return server
    start = as_arrays(start)
    if jax.tree.structure(start) == jax.tree.structure(server):
        return start
    return as_arrays(algorithm.with_params(server, start))


def init_clients(
    algorithm: FederatedAlgorithm,
    server: PyTree,
    root: Key,
    data: FederatedSource,
    layout: Layout,
) -> PyTree:
    """The states of this device's clients before any training, leaves (owned, ...)."""
    key_clients, batch = (
        named_key(named_key(root, "training"), "init"),
        min(layout.chunk_size, layout.owned),
    )

    def init_client(row: Array) -> PyTree:
        client_id = device_index(layout) + layout.num_devices * row
        client_id = jnp.minimum(
            client_id, layout.num_clients - 1
        )  # a device's last row may be padding
        key = jax.random.fold_in(key_clients, client_id)
        return as_arrays(
            algorithm.init_client(key, server, owned_client(layout, data, client_id))
        )

    def fill(index: Array, states: PyTree) -> PyTree:
        first = jnp.minimum(
            index * batch, layout.owned - batch
        )  # the last batch may overlap the one before
        some = jax.vmap(init_client)(first + jnp.arange(batch, dtype=jnp.int32))
        put_in = lambda all, some: jax.lax.dynamic_update_slice_in_dim(
            all, some, first, 0
        )
        return jax.tree.map(put_in, states, some)

    # In place: `lax.map` would hold all states twice if batches do not divide them.
    shapes = jax.eval_shape(init_client, jnp.int32(0))
    empty = jax.tree.map(
        lambda leaf: jax.lax.full((layout.owned, *leaf.shape), 0, leaf.dtype), shapes
    )
    return jax.lax.fori_loop(0, -(-layout.owned // batch), fill, empty)
