"""`evaluate`: judging what a run has learnt on clients that took no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_srp.base import FederatedAlgorithm, FederatedSource, Key, Method, ServerState
from fedjax_srp.engine.prepare import Request, check_key, prepare
from fedjax_srp.engine.sharding import place


def evaluate(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    server_state: ServerState,
    *,
    key: Key,
    evaluations: str | Sequence[str] | None = None,
    chunk_size: int | None = None,
    devices: Sequence[Any] | int | None = None,
    shard_data: bool = False,
) -> dict[str, np.ndarray]:
    """Scores of clients that have not trained, under a server state: new clients, or the old ones after fine-tuning.

    Every client starts as `algorithm.init_client` makes it from the server state, is personalised on its training data
    as the evaluation says, and is scored on its test data.

    Args:
        algorithm: the algorithm of the run, or its `Method`; other options (fine-tuning epochs, samples) may differ as
            long as the server state has the same shapes.
        data: whose clients are judged.
        server_state: `history.server_state`.
        key: of fine-tuning; the same key draws the same batches for every method.
        evaluations: names of the algorithm's evaluations; None for the default one, "all" for every one.
        chunk_size: clients at once on each device; None for a measured default.
        devices: devices to spread the clients over, or how many; None for all, those of every process.
        shard_data: keep every client's examples on one device, as in `simulate`.

    Returns:
        name of the evaluation -> (num_clients,) scores, nan where a client has no test data.

    Raises:
        ValueError: an unknown evaluation, a missing server state, a key that is none or several.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> options = {"dim": 20, "rank": 2, "noise_std": 0.1}
        >>> task = srp.data.linear_task(jax.random.key(0), num_clients=64, **options)
        >>> algorithm = srp.algorithms.linear_fedrep(task, step_size=0.1, samples_per_round=10)
        >>> history = srp.simulate(algorithm, task, num_rounds=20, key=jax.random.key(1), progress=False)
        >>> more = srp.data.linear_task(jax.random.key(0), num_clients=100, **options)  # 36 new clients, the same truth
        >>> srp.evaluate(algorithm, more, history.server_state, key=jax.random.key(2))["fit_head"].shape
        (100,)
    """
    check_key("key", key)
    if key.shape != ():
        raise ValueError(f"key has shape {key.shape}, evaluate takes one key")
    if server_state is None:
        raise ValueError("server_state=None: a history that was loaded has none; simulate again and keep the history")
    if isinstance(algorithm, Method):
        algorithm = algorithm.algorithm
    run = prepare(
        Request(algorithm, data, evaluations=evaluations, chunk_size=chunk_size, devices=devices, shard_data=shard_data)
    )
    root, placed = run.placed(key)
    scores = jax.device_get(run.program().scores(place(run.plan, server_state), root, placed))
    num_clients = run.plan.num_clients
    return {
        name: np.asarray(total, np.float64)[:num_clients] / np.asarray(count, np.float64)[:num_clients]
        for name, (total, count) in scores.items()
    }
