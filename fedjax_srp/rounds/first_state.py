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
    keeps_clients: bool = True,
) -> Start:
    """The state before the first round, after the phases of the start; these are left out if `begin` is given.

    `begin` is a server state, or its parameters, see `driver.given`. Clients, policy and clock begin as ever; with
    `keeps_clients` False the state has no clients, see `driver.stored`.
    """
    key_server = named_key(named_key(root, "server"), "init")
    server = as_arrays(algorithm.init(key_server, data))
    server = begun(algorithm, server, begin)
    clients: PyTree = ()
    if keeps_clients:
        clients = init_clients(algorithm, server, root, data, layout)
    key_policy = named_key(named_key(root, "participation"), "init")
    policy_state = as_arrays(policy.init(key_policy, layout.num_clients))
    key_clock = named_key(named_key(root, "clock"), "init")
    clock_state = as_arrays(clock.init(key_clock, layout.num_clients))
    state = SimulationState(
        server=server,
        clients=clients,
        policy=policy_state,
        clock=clock_state,
        round=jnp.int32(0),
        now=jnp.zeros(()),
        ahead=jnp.zeros(()),
        rounds_taken=jnp.zeros(layout.num_clients, jnp.int32),
    )
    key_times = stream(root, "clock", state.round)
    times, _ = as_arrays(clock.sample(key_times, clock_state, state.now))
    if begin is None:
        state = prepare_server(algorithm, clock, data, state, root, layout)
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
    rows: Array | None = None,  # int32, among those of the device
) -> PyTree:
    """The states of this device's clients before any training, leaves (owned, ...); with `rows`, of these alone."""
    key_clients = named_key(named_key(root, "training"), "init")
    number = layout.owned if rows is None else rows.shape[0]
    batch = min(layout.chunk_size, number)

    def init_client(row: Array) -> PyTree:
        client_id = device_index(layout) + layout.num_devices * row
        # A device's last row may be padding.
        client_id = jnp.minimum(client_id, layout.num_clients - 1)
        key = jax.random.fold_in(key_clients, client_id)
        client_data = owned_client(layout, data, client_id)
        return as_arrays(algorithm.init_client(key, server, client_data))

    def fill(index: Array, states: PyTree) -> PyTree:
        # The last batch may overlap the one before.
        first = jnp.minimum(index * batch, number - batch)
        places = first + jnp.arange(batch, dtype=jnp.int32)
        new = jax.vmap(init_client)(places if rows is None else rows[places])
        put_in = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda leaf, of: put_in(leaf, of, first, 0), states, new)

    # In place: `lax.map` would hold all states twice if batches do not divide them.
    shapes = jax.eval_shape(init_client, jnp.int32(0))
    zeros = lambda leaf: jax.lax.full((number, *leaf.shape), 0, leaf.dtype)
    num_batches = -(-number // batch)
    return jax.lax.fori_loop(0, num_batches, fill, jax.tree.map(zeros, shapes))
