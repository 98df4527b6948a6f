"""The contract of `base.py`, checked at the door of a simulation from shapes alone: nothing runs.

What a function of an author raises by itself comes through as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from fedjax_srp._checks import short
from fedjax_srp.base import (
    GRADIENT_NORM,
    TRAINING_LOSS,
    Array,
    ClientData,
    ClientOutput,
    ClientTimes,
    Clock,
    Cohort,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    ParticipationPolicy,
    Phase,
    PyTree,
    RoundContext,
    RoundInfo,
    TrainingLoss,
)
from fedjax_srp.columns import check_metric_names
from fedjax_srp.engine.carries import largest_carry
from fedjax_srp.engine.structures import check_like, is_array, is_number, kind_of, no_arrays, paths, shapes_of, type_of

LIKE_INIT = "it must be like what init makes"


class Shapes(NamedTuple):
    """What an algorithm hands around, as shapes."""

    server: PyTree
    state: PyTree  # of a client
    train: PyTree  # a client's data
    test: PyTree
    up: tuple[PyTree, ...]  # messages of `round`, `finish` and the criterion's gradient, as far as there are
    down: tuple[PyTree, ...]  # broadcasts of `round` and `finish`
    metrics: dict[str, Any]  # of a round: those of the algorithm and the means of `info`
    carried: int  # bytes of the largest carry of a loop in a client: what it trains, with the optimizer's state
    carried_judged: int  # the same while it is evaluated


def _shape(dtype: Any, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _float(*shape: int) -> Any:
    return _shape(jnp.result_type(float), *shape)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _check_arity(where: str, function: Callable[..., Any], names: str) -> None:
    """Refuses a function that cannot be called with arguments of these names."""
    if not callable(function):
        raise ValueError(f"{where} is {short(function)}, it must be a function of ({names})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins tell none
        return
    try:
        signature.bind(*names.split(", "))
    except TypeError:
        parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        takes = " ".join(str(signature.replace(parameters=parameters, return_annotation=signature.empty)).split())
        raise ValueError(f"{where} takes {takes}, it is called with ({names})") from None


def _call(where: str, function: Callable[..., Any], names: str, *args: Any) -> Any:
    """The shapes that a function returns for these, after a look at its signature."""
    return _traced(where, function, names, *args)[0]


def _traced(where: str, function: Callable[..., Any], names: str, *args: Any) -> tuple[Any, ClosedJaxpr]:
    """What `_call` returns, and the function as it was traced."""
    _check_arity(where, function, names)
    refused: list[str] = []

    def arrays(*args: Any) -> Any:
        returned = function(*args)
        refused.extend(no_arrays(returned))
        return () if refused else returned

    jaxpr, shapes = jax.make_jaxpr(arrays, return_shape=True)(*args)
    if refused:
        raise ValueError(f"{where} returned {refused[0]}, it must return arrays")
    shapes = jax.tree.map(lambda leaf: _shape(leaf.dtype, *leaf.shape), shapes)  # weak types become plain ones
    return shapes, jaxpr


def _check_scalars(what: str, scalars: Any) -> None:
    if not isinstance(scalars, Mapping):
        raise ValueError(f"{what} {kind_of(scalars)}, it must be a dict of scalars")
    for name, value in scalars.items():
        if not isinstance(name, str):
            raise ValueError(f"{what} a dict with the name {name!r}, names must be strings")
        real = getattr(value, "shape", None) == () and is_number(value)
        if not real or jnp.issubdtype(value.dtype, np.complexfloating):
            raise ValueError(f"{what} {name!r} = {shapes_of(value)}, it must be a scalar")


def _check_output(where: str, output: Any, state: PyTree) -> ClientOutput:
    """A client function's output as it is; refuses one that the engine cannot use."""
    if not isinstance(output, ClientOutput):
        raise ValueError(
            f"{where} returned {kind_of(output)}, it must return srp.ClientOutput(message, state, weight, info)"
        )
    if output.state is not None:
        check_like(f"{where} returned the state", output.state, state, "it must be like what init_client makes")
    if output.loss is not None:
        check_like(
            f"{where} returned the loss",
            output.loss,
            TrainingLoss(_float(), _shape(jnp.int32)),
            "it must be that of local_sgd",
        )
    for name, leaf in zip(paths(output.message), jax.tree.leaves(output.message), strict=True):
        if not is_number(leaf):
            place = f"{name} = " if name else ""
            raise ValueError(f"{where} returned the message {place}{shapes_of(leaf)}, the engine averages numbers")
    try:
        jax.tree.map(lambda weight, part: None, output.weight, output.message)
    except ValueError:
        raise ValueError(
            f"{where} returned the weight {shapes_of(output.weight)}, which is no prefix of the message "
            f"{shapes_of(output.message)}; give a scalar, or one for each part"
        ) from None
    for leaf in jax.tree.leaves(output.weight):
        if leaf.shape != () or not is_number(leaf):
            raise ValueError(f"{where} returned the weight {shapes_of(leaf)}, it must be a scalar or scalars by part")
    _check_scalars(f"{where} returned info:", output.info)
    return output


def _averaged(tree: PyTree) -> PyTree:
    """Shapes of the mean over a cohort: integers and flags are averaged as floats."""
    return jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else _float(*leaf.shape), tree)


def check_algorithm(
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    evaluations: Sequence[str] = (),
    needs_gradient: bool = False,
    records_loss: bool = False,
) -> Shapes:
    """Traces every function of an algorithm that a run will call.

    Args:
        algorithm: checked.
        data: what it runs on.
        evaluations: names of those that will be called.
        needs_gradient: whether the policy asks for the gradient.
        records_loss: whether the training loss joins the metrics.

    Raises:
        ValueError: the first function that breaks the contract, and what it returned.
    """
    name, key, one = f"algorithm {algorithm.name!r}", _key(), _shape(jnp.int32)
    train, test = (_client_data(f"{split}_client", data) for split in ("train", "test"))
    server = _call(f"{name}: init", algorithm.init, "key, data", key, data)
    names = "key, server state, client data"
    state = _call(f"{name}: init_client", algorithm.init_client, names, key, server, train)
    carried = [0]

    def in_round(where: str, function: Callable[..., Any], names: str, *args: Any) -> tuple[Any, ClosedJaxpr]:
        """`_traced` with a context behind the arguments."""
        _check_arity(where, function, f"{names}, context")

        def with_context(integers: tuple[Array, ...], *args: Any) -> Any:
            index, stage, size, work = integers
            return function(*args, RoundContext(index, stage, size, data.num_clients, work, records_loss))

        return _traced(where, with_context, f"context, {names}", (one,) * 4, *args)

    def client(where: str, function: Callable[..., Any], broadcast: PyTree) -> ClientOutput:
        names = "key, broadcast, client state, client data"
        output, traced = in_round(where, function, names, key, broadcast, state, train)
        carried.append(largest_carry(traced))
        return _check_output(where, output, state)

    def phase(field: str, phase: Phase) -> tuple[PyTree, PyTree, dict[str, Any]]:
        where = f"{name}: {field}"
        if not isinstance(phase, Phase):
            raise ValueError(f"{where} is {short(phase)}, it must be srp.Phase(broadcast, client, server)")
        down = in_round(f"{where}.broadcast", phase.broadcast, "server state", server)[0]
        output = client(f"{where}.client", phase.client, down)
        if field == "round" and records_loss and output.loss is None:
            raise ValueError(
                f"record_loss: {name} reports no loss of its local training; return ClientOutput(..., "
                "loss=trained.loss) with what local_sgd returned, or leave record_loss out"
            )
        mean, names = _averaged(output.message), "key, server state, mean message"
        new = in_round(f"{where}.server", phase.server, names, key, server, mean)[0]
        check_like(f"{where}.server returned", new, server, LIKE_INIT)
        return output.message, down, _averaged(dict(output.info))

    up, down, infos = zip(*(phase(field, part) for field, part in _phases(algorithm)), strict=True)
    if algorithm.prepare is not None:
        phase("prepare", algorithm.prepare)
    if needs_gradient:
        if algorithm.gradient is None:
            raise ValueError(
                f"the participation policy needs the global gradient but {name} has no `gradient`; use a policy "
                "without a gradient criterion, such as participation.Doubling"
            )
        up = (*up, client(f"{name}: gradient", algorithm.gradient, down[0]).message)
    metrics = _call(f"{name}: metrics", algorithm.metrics, "server state, data", server, data)
    _check_scalars(f"{name}: metrics returned", metrics)
    metrics = _joined(name, metrics, *infos, *([{TRAINING_LOSS: _float()}] if records_loss else []))
    check_metric_names(f"{name}: metrics or info", metrics, evaluations)
    if algorithm.communicates is not None:
        where = f"{name}: communicates"
        says = in_round(where, algorithm.communicates, "server state", server)[0]
        check_like(f"{where} returned", says, _shape(jnp.bool_), "it must return a flag")
    for leaf in jax.tree.leaves(algorithm.sends):
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise ValueError(
                f"{name}: sends has {type_of(leaf)} in it, it must hold jax.ShapeDtypeStruct(shape, dtype)"
            )
    judging = [_judged(f"{name}: evaluation {e!r}", algorithm.evaluations[e], data, server, state) for e in evaluations]
    return Shapes(server, state, train, test, up, down, metrics, max(carried), max([0, *judging]))


def _judged(where: str, personalize: Callable[..., Any], data: FederatedSource, server: PyTree, state: PyTree) -> int:
    """Traces an evaluation; bytes of the largest carry of a loop in it."""
    _check_arity(where, personalize, "key, server state, client state, client data")
    train, test = (_client_data(f"{split}_client", data) for split in ("train", "test"))

    def judge(data: FederatedSource, key: Key, server: PyTree, state: PyTree, train: ClientData, test: ClientData):
        return score(where, data, personalize(key, server, state, train), test)

    names = "data, key, server state, client state, training data, test data"
    return largest_carry(_traced(where, judge, names, data, _key(), server, state, train, test)[1])


def _phases(algorithm: FederatedAlgorithm) -> list[tuple[str, Phase]]:
    """Those of every round."""
    return [("round", algorithm.round)] + ([] if algorithm.finish is None else [("finish", algorithm.finish)])


def _client_data(method: str, data: FederatedSource) -> PyTree:
    _check_arity(f"data: {method}", getattr(data, method), "client id")
    of_client = lambda data, client: getattr(data, method)(client)  # noqa: E731
    return _call(f"data: {method}", of_client, "data, client id", data, _shape(jnp.int32))


def _joined(name: str, *scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is recorded in a round, each name once."""
    joined: dict[str, Any] = {}
    for some in scalars:
        if twice := sorted(joined.keys() & some.keys()):
            raise ValueError(f"{name}: {twice[0]!r} is recorded twice in a round; rename one, of metrics or of info")
        joined |= some
    return joined


def score(where: str, data: FederatedSource, predict: Any, test: ClientData) -> tuple[Array, Array]:
    """`data.score` of what an evaluation returned, both looked at while they are traced.

    Raises:
        ValueError: what breaks the contract, and what it returned.
    """
    if not callable(predict):
        raise ValueError(f"{where} returned {kind_of(predict)}, it must return a function, predict(x) -> outputs")
    _check_arity(f"{where}: predict", predict, "x")

    def outputs_of(x: Array) -> Any:
        outputs = predict(x)
        if refused := no_arrays(outputs) if outputs is not None else ["None"]:
            raise ValueError(f"{where}: predict returned {refused[0]}, not an array")
        return outputs

    scored = data.score(outputs_of, test)
    if not (isinstance(scored, tuple) and [_shape_of(part) for part in scored] == [(), ()]):
        shown = no_arrays(scored) or [shapes_of(scored)]
        raise ValueError(f"{where}: data.score returned {shown[0]}, it must return the sum of scores and their number")
    return jnp.asarray(scored[0]), jnp.asarray(scored[1])


def _shape_of(value: Any) -> tuple[int, ...] | None:
    return jnp.shape(value) if is_array(value) else None


def check_policy(
    policy: ParticipationPolicy, num_clients: int, metrics: Mapping[str, Any], evaluations: Sequence[str] = ()
) -> None:
    """Traces a policy, with shapes of what the algorithm records in a round and the names of the run's evaluations.

    Raises:
        ValueError: a function that breaks the contract, and what it returned; what the policy itself refuses.
    """
    name, key, one = f"policy {policy.name!r}", _key(), _shape(jnp.int32)
    _check_arity(f"{name}: init", policy.init, "key, num_clients")
    state = _call(f"{name}: init", lambda key: policy.init(key, num_clients), "key", key)
    _check_arity(f"{name}: select", policy.select, "key, state, times")
    python: dict[str, Any] = {}

    def select(key: Key, state: PyTree, times: ClientTimes) -> Any:
        picked = policy.select(key, state, times)
        if isinstance(picked, tuple) and picked and isinstance(picked[0], Cohort):
            python.update({n: value for n, value in picked[0]._asdict().items() if isinstance(value, int | float)})
        return picked

    each = _float(num_clients)
    picked = _call(f"{name}: select", select, "key, state, times", key, state, ClientTimes(each, each))
    if not (isinstance(picked, tuple) and len(picked) == 2 and isinstance(picked[0], Cohort)):
        raise ValueError(f"{name}: select returned {kind_of(picked)}, it must return (Cohort, state)")
    for field, number in python.items():
        raise ValueError(f"{name}: select returned {field} = {number!r}, it must be an array; jnp.asarray makes one")
    cohort, new = picked
    check_like(f"{name}: select returned the state", new, state, LIKE_INIT)
    pool = getattr(cohort.client_ids, "shape", ())
    if len(pool) != 1 or not 1 <= pool[0] <= num_clients:
        raise ValueError(
            f"{name}: select returned client_ids = {shapes_of(cohort.client_ids)}, they must be (pool,) ids, of at "
            f"most {num_clients} clients"
        )
    ids, duration = _shape(jnp.int32, *pool), None if cohort.duration is None else _float()
    check_like(f"{name}: select returned", cohort, Cohort(ids, one, ids, one, duration), "a Cohort has")
    flag = _shape(jnp.bool_)
    metrics = _joined(name, metrics, {GRADIENT_NORM: _float()} if policy.needs_global_gradient else {})
    info = RoundInfo(one, one, one, _float(), flag, _float(), flag, dict(metrics))
    try:
        updated = _call(f"{name}: update", policy.update, "state, info", state, info)
    except KeyError as error:
        error.add_note(f"{name}: info.metrics has {[*info.metrics]}, and 'training_loss' with record_loss=True")
        raise
    check_like(f"{name}: update returned", updated, state, LIKE_INIT)
    said = _call(f"{name}: metrics", policy.metrics, "state", state)
    _check_scalars(f"{name}: metrics returned", said)
    check_metric_names(f"{name}: metrics", _joined(name, metrics, said), evaluations)


def check_clock(clock: Clock, num_clients: int) -> None:
    """Traces a clock.

    Raises:
        ValueError: a function that breaks the contract, and what it returned; what the clock itself refuses.
    """
    name, key = f"clock {clock.name!r}", _key()
    _check_arity(f"{name}: init", clock.init, "key, num_clients")
    state = _call(f"{name}: init", lambda key: clock.init(key, num_clients), "key", key)
    sampled = _call(f"{name}: sample", clock.sample, "key, state", key, state)
    if not (isinstance(sampled, tuple) and len(sampled) == 2 and isinstance(sampled[0], ClientTimes)):
        raise ValueError(f"{name}: sample returned {kind_of(sampled)}, it must return (ClientTimes, state)")
    times, new = sampled
    each, once = _float(num_clients), None if times.communication is None else _float()
    if once is not None:
        where = f"{name}: sample returned communication ="
        check_like(where, times.communication, once, "it must be one number for all clients")
    check_like(f"{name}: sample returned", times, ClientTimes(each, each, once), "there must be a time for each client")
    check_like(f"{name}: sample returned the state", new, state, LIKE_INIT)
