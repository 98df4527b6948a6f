"""`personalize`: the parameters of the model by which an evaluation judges a client."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_srp.base import (
    Array,
    ClientData,
    ClientState,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    PyTree,
    ServerState,
)
from fedjax_srp.driver.evaluate import initial_states
from fedjax_srp.driver.given import check_kept, client_id, fitted
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.record import check_same_data
from fedjax_srp.driver.settings import Settings
from fedjax_srp.parts.checks import checked
from fedjax_srp.results.history import History
from fedjax_srp.rounds.round import as_arrays, stream
from fedjax_srp.xla.backend import traced_for


@checked
def personalize(
    method: FederatedAlgorithm | Method,
    data: FederatedSource,
    history: History,
    client: int | str,
    evaluation: str | None = None,
) -> PyTree:
    """Return the parameters of the model by which the last evaluation of a run judged a client.

    A model that an evaluation trains is not kept, so it is trained again, with the same batches. Other clients' calls
    reuse the compiled program.

    Args:
        method: of the run, such as `history.method`, or its algorithm.
        data: of the run.
        history: of the run, with its `server_state`, and with `client_states` (`keep_clients=True`) for an evaluation
            that reads the client's own part of the model.
        client: its id, from 0, or its name in `data.client_names`.
        evaluation: name of an evaluation of the method, also one that the run has not recorded; None for the run's
            default one.

    Returns:
        NumPy arrays: `SplitParams(representation, head)` for a model cut in two, with which `model.logits(params, x)`
        predicts; what else an evaluation's `Partial` has.

    Raises:
        ValueError: an unknown evaluation, or one that returns no `jax.tree_util.Partial`; no such client; a history
            without the states that the evaluation reads, or of another method.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedrep", dataset=data, hidden=(32,))
        >>> history = srp.simulate(method, data, num_rounds=2, key=jax.random.key(0), progress=False)
        >>> params = srp.personalize(method, data, history, client=3, evaluation="fine_tune")
        >>> params.head["out"]["kernel"].shape
        (32, 10)
    """
    check_kept(history.server_state, "history.server_state")
    client = client_id(client, data)
    check_same_data(data, history, "the model may be another client's")
    algorithm = method.algorithm if isinstance(method, Method) else method
    name = history.evaluation if evaluation is None else evaluation
    names = None if name is None else (name,)
    run = prepare(Request(algorithm, data, settings=Settings(evaluations=names)))
    if not run.evaluations:
        raise ValueError(
            f"evaluation=None: algorithm {algorithm.name!r} has no evaluation; give it one by @srp.evaluation"
        )
    name = run.evaluations[0]
    root = _root_key(history)
    server_shapes, state_shapes = jax.eval_shape(
        lambda key, data: initial_states(algorithm, key, data), root, data
    )
    server = fitted("history.server_state", history.server_state, server_shapes)
    platform = run.layout.devices[0].platform
    arguments = (algorithm, data, server, root, history.num_rounds, client)
    state = None
    if _reads_state(name, state_shapes, platform, arguments):
        if history.client_states is None:
            raise ValueError(
                f"history.client_states=None: evaluation {name!r} reads the client's own part of the model, and this "
                "history kept none; run with keep_clients=True (and save with models=True)"
            )
        own = jax.tree.map(lambda leaf: leaf[client], history.client_states)
        state = fitted("history.client_states", own, state_shapes)
    return jax.device_get(_model_of(name, platform, state, *arguments))


def _root_key(history: History) -> Key:
    """Return the key of a run, from its record."""
    words = np.asarray(history.config.get("key") or (), np.uint32)
    expected = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    if words.shape != expected:
        raise ValueError(
            f"history: its record has a key of {words.size} words, and keys have {expected[0]} here; give a history of "
            "srp.simulate, and set jax_default_prng_impl as for its run"
        )
    return jax.random.wrap_key_data(jnp.asarray(words))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _model_of(
    name: str,
    platform: str,
    state: ClientState | None,
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    server: ServerState,
    root: Key,
    num_rounds: Array,
    client: Array,
) -> PyTree:
    """Return the parameters of a client's model, trained as in the evaluation after these rounds."""
    with traced_for(platform):
        client_data = data.train_client(jnp.asarray(client, jnp.int32))
        key = jax.random.fold_in(stream(root, "evaluation", num_rounds), client)
        if state is None:  # which is not read
            state = as_arrays(algorithm.init_client(key, server, client_data))
        return _parameters(algorithm, name, key, server, state, client_data)


def _parameters(
    algorithm: FederatedAlgorithm,
    name: str,
    key: Key,
    server: ServerState,
    state: ClientState,
    client_data: ClientData,
) -> PyTree:
    predict = algorithm.evaluations[name](key, server, state, client_data)
    if not isinstance(predict, Partial) or predict.keywords or len(predict.args) != 1:
        raise ValueError(
            f"evaluation={name!r} of {algorithm.name!r} returns a function whose parameters are not known; return "
            "jax.tree_util.Partial(function, parameters), with function(parameters, x) -> outputs"
        )
    return predict.args[0]


def _reads_state(
    name: str, state_shapes: PyTree, platform: str, arguments: tuple[Any, ...]
) -> bool:
    """Return True if an evaluation reads the client's state."""
    algorithm, data, server, root, _, client = arguments

    def parameters(state: ClientState) -> PyTree:
        client_data = data.train_client(jnp.int32(client))
        return _parameters(algorithm, name, root, server, state, client_data)

    with traced_for(platform):
        program = jax.make_jaxpr(parameters)(state_shapes).jaxpr
    states = {id(variable) for variable in program.invars}
    read = [*program.outvars]
    for equation in program.eqns:
        read += equation.invars
    return any(id(variable) in states for variable in read)
