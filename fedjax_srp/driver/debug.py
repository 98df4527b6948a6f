"""`debug_client`: the phases of a round for one client, operation by operation, without compiling a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import (
    ClientOutput,
    ClientState,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    PyTree,
    RoundContext,
    ServerState,
    named_key,
)
from fedjax_srp.contract.checks import (
    LIKE_INIT,
    check_like,
    check_output,
    score,
    server_update,
)
from fedjax_srp.driver.given import Start, client_id, fitted_start, root_key
from fedjax_srp.driver.outcome import ratio
from fedjax_srp.driver.prepare import check_evaluations
from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.part import Count
from fedjax_srp.rounds.first_state import begun
from fedjax_srp.rounds.round import as_arrays, as_float, stream
from fedjax_srp.xla.loops import eager


class ClientRound(NamedTuple):
    """The result of a round with one client, see `debug_client`."""

    outputs: dict[str, ClientOutput]  # what each phase returned, those of the start first
    server: ServerState  # after the last phase
    state: ClientState  # after the last phase
    scores: dict[str, float]  # by evaluation, nan without test data


@checked
def debug_client(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    client: int | str = 0,
    *,
    key: Key | None = None,
    seed: int | None = None,
    start: Start = "init",
    work: Count = 1,
    evaluations: str | Sequence[str] | None = None,
) -> ClientRound:
    """Run the first round of one client, without compiling it: breakpoints and prints see its arrays.

    Every function of the algorithm runs as plain Python, on the arrays of one client, with the keys that it has in
    `simulate`. The client is the only participant, so the mean is its message. Inside `jax.grad`, arrays are tracers
    that show their numbers.

    Args:
        algorithm: the algorithm, or a `Method`, whose participation does not matter here.
        data: as for `simulate`.
        client: its id, from 0, or its name in `data.client_names`.
        key: root of all randomness, as for `simulate`; default that of seed 0.
        seed: instead of a key.
        start: a server state or parameters to begin from, as for `simulate`.
        work: units of local work of the client.
        evaluations: that judge the client after the round, as for `simulate`; () for none.

    Returns:
        The outputs of the phases by name, the states after them, and the client's scores.

    Raises:
        ValueError: an argument out of range, or a function that returns what the engine cannot use.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.FedAvg(srp.models.MLP((8, 8), 10, hidden=(8,)), srp.Training(srp.SGD(0.1)))
        >>> tried = srp.debug_client(algorithm, data, client=3, evaluations=())
        >>> tried.outputs["round"].message.head["out"]["bias"].shape
        (10,)
    """
    if isinstance(algorithm, Method):
        algorithm = algorithm.algorithm
    client = client_id(client, data)
    names = check_evaluations(algorithm, evaluations)
    if key is None and seed is None:
        seed = 0
    root = root_key(key, seed)
    begin = fitted_start(start, algorithm, data)
    arrays: FederatedAlgorithm = jax.tree.map(jnp.asarray, algorithm)  # as in programs
    with eager():
        return _round(
            arrays, data, jnp.int32(client), root, begin, jnp.int32(work), names
        )


def _round(
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    client: jax.Array,
    root: Key,
    begin: ServerState | None,
    work: jax.Array,
    evaluations: Sequence[str],
) -> ClientRound:
    key_server = named_key(named_key(root, "server"), "init")
    server = begun(algorithm, as_arrays(algorithm.init(key_server, data)), begin)
    train = data.train_client(client)
    key_clients = named_key(named_key(root, "training"), "init")
    key_client = jax.random.fold_in(key_clients, client)
    state = as_arrays(algorithm.init_client(key_client, server, train))
    first = jnp.int32(0)
    context = RoundContext(first, first, jnp.int32(1), data.num_clients, work)
    phases = algorithm.phases
    if begin is None:
        phases = (*algorithm.start_phases, *phases)
    outputs: dict[str, ClientOutput] = {}
    for phase in phases:
        where = f"algorithm {algorithm.name!r}: {phase.name}"
        of_client = context._replace(client_id=client)
        download = as_arrays(phase.download(server, state, of_client))
        key_training = named_key(stream(root, "training", first), phase.name)
        key_client = jax.random.fold_in(key_training, client)
        output = phase.client(key_client, download, state, train, of_client)
        output = as_arrays(output)
        check_output(f"{where}.client", output, state)
        outputs[phase.name] = output
        if output.state is not None:
            state = output.state
        mean = jax.tree.map(_alone, output.weight, output.message)
        key_server = named_key(stream(root, "server", first), phase.name)
        updated = as_arrays(phase.server(key_server, server, mean, context))
        updating = server_update(where, output.weight)
        check_like(f"{updating} returned", updated, server, LIKE_INIT)
        server = updated

    scores: dict[str, float] = {}
    key_evaluation = stream(root, "evaluation", first + 1)
    key_client = jax.random.fold_in(key_evaluation, client)
    test = data.test_client(client)
    for name in evaluations:
        where = f"algorithm {algorithm.name!r}: evaluation {name!r}"
        personalize = algorithm.evaluations[name]
        predict = personalize(key_client, server, state, train)
        total, count = np.asarray(score(where, data, predict, test), np.float64)
        scores[name] = ratio(total, count).item()
    return ClientRound(outputs, server, state, scores)


def _alone(weight: jax.Array, part: PyTree) -> PyTree:
    """The mean of a part of the only message: the part itself, or that of each group."""

    def mean(leaf: jax.Array) -> jax.Array:
        leaf = as_float(leaf)
        if not weight.ndim:
            return leaf
        has_weight = jnp.expand_dims(weight != 0, tuple(range(1, leaf.ndim + 1)))
        return jnp.where(has_weight, leaf[None], 0)

    return jax.tree.map(mean, part)
