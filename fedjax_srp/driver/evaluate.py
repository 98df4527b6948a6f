"""`evaluate`: scores of new clients, or of the clients of a run, under a trained server state."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import (
    ClientState,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    PyTree,
    ServerState,
)
from fedjax_srp.driver.given import check_kept, fitted, is_new, root_key
from fedjax_srp.driver.outcome import ratio
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings, takes_settings
from fedjax_srp.parts.checks import checked
from fedjax_srp.rounds.round import as_arrays
from fedjax_srp.rounds.sharding import place, place_clients


@checked
@takes_settings("evaluations", "chunk_size", "devices", "shard_data")
def evaluate(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    server_state: ServerState,
    *,
    key: Key | None = None,
    seed: int | None = None,
    client_states: ClientState | Literal["new"] = "new",
    **settings: Any,
) -> dict[str, np.ndarray]:
    """Score clients under a server state: new clients, or the clients of a run with their states.

    Every client starts from `algorithm.init_client`, or from its state in `client_states`, is personalised on its
    training data by the evaluation, and is scored on its test data.

    Args:
        algorithm: the algorithm of the run, or its `Method`; other options (fine-tuning epochs, samples) may differ as
            long as the server state has the same shapes.
        data: of the clients to score.
        server_state: `history.server_state`.
        client_states: `history.client_states`, for the clients of the run itself; "new" for clients that have not
            trained, whose own heads or models are then judged untrained.
        key: of fine-tuning; the same key draws the same batches for every method.
        seed: instead of a key: that of `jax.random.key(seed)`.
        **settings: fields of `Settings`, by keyword.

    Returns:
        name of the evaluation -> (num_clients,) scores, nan for clients without test data.

    Raises:
        ValueError: an unknown evaluation, a missing server state, missing `client_states` of a history, states with
            names, shapes or types that are not those of the algorithm, or anything but one key.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> options = {"dim": 20, "rank": 2, "noise_std": 0.1}
        >>> task = srp.data.linear_task(jax.random.key(0), num_clients=64, **options)
        >>> algorithm = srp.algorithms.LinearFedRep(task, step_size=0.1, samples_per_round=10)
        >>> history = srp.simulate(algorithm, task, num_rounds=20, key=jax.random.key(1), progress=False)
        >>> more = srp.data.linear_task(jax.random.key(0), num_clients=100, **options)  # 36 new clients, the same truth
        >>> srp.evaluate(algorithm, more, history.server_state, key=jax.random.key(2))["fit_head"].shape
        (100,)
    """
    check_kept(server_state)
    key = root_key(key, seed)
    if isinstance(algorithm, Method):
        algorithm = algorithm.algorithm
    run = prepare(Request(algorithm, data, settings=Settings(**settings)))
    num_clients = run.layout.num_clients
    server, client = jax.eval_shape(
        lambda key, data: initial_states(run.algorithm, key, data), key, data
    )
    server_state = place(run.layout, fitted("server_state", server_state, server))
    clients = None
    if not is_new(client_states):
        of_all = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((num_clients, *leaf.shape), leaf.dtype),
            client,
        )
        states = fitted("client_states", client_states, of_all)
        clients = place_clients(run.layout, states)
    root, placed = run.placed(key)
    scores = jax.device_get(run.program().scores(server_state, root, placed, clients))
    means = {}
    for name, sums in scores.items():
        total, count = np.asarray(sums, np.float64)[:, :num_clients]
        means[name] = ratio(total, count)
    return means


def initial_states(
    algorithm: FederatedAlgorithm, key: Key, data: FederatedSource
) -> tuple[PyTree, PyTree]:
    """Return the states of the server and of a client before the first round."""
    server = as_arrays(algorithm.init(key, data))
    return server, as_arrays(
        algorithm.init_client(key, server, data.train_client(jnp.int32(0)))
    )
