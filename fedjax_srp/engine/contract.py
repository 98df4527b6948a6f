"""The contract of `base.py`, checked at the door of a simulation from shapes alone: nothing runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import (
    Array,
    ClientOutput,
    ClientTimes,
    Clock,
    Cohort,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    ParticipationPolicy,
    Personalize,
    Phase,
    PyTree,
    RoundContext,
    RoundInfo,
)
from fedjax_srp.tunable import plain

SHOWN = 160  # characters of a structure in a message


class Shapes(NamedTuple):
    """What an algorithm hands around, as shapes."""

    server: PyTree
    state: PyTree  # of a client
    train: PyTree  # a client's data
    test: PyTree
    up: tuple[PyTree, ...]  # messages of `round`, `finish` and the criterion's gradient, as far as there are
    down: tuple[PyTree, ...]  # broadcasts of `round` and `finish`


def _integer(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _check_arity(where: str, function: Callable[..., Any], names: str) -> None:
    """Refuses a function that cannot be called with arguments of these names."""
    if not callable(function):
        raise ValueError(f"{where} is {function!r}, it must be a function of ({names})")
    try:
        signature = inspect.signature(plain(function))
    except (TypeError, ValueError):  # some builtins tell none
        return
    try:
        signature.bind(*names.split(", "))
    except TypeError:
        raise ValueError(f"{where} takes {signature}, it is called with ({names})") from None


def _call(where: str, function: Callable[..., Any], names: str, *args: Any) -> Any:
    """The shapes that a function returns for these, after a look at its signature."""
    _check_arity(where, function, names)
    kinds: list[str] = []

    def arrays(*args: Any) -> Any:
        returned = function(*args)
        kinds.extend(type(leaf).__name__ for leaf in jax.tree.leaves(returned) if not _is_array_like(leaf))
        return () if kinds else returned

    shapes = jax.eval_shape(arrays, *args)
    if kinds:
        raise ValueError(f"{where} returned something with a {kinds[0]} in it, it must return arrays")
    return shapes


def _is_array_like(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float)


def _shown(tree: PyTree) -> str:
    """A structure in a few words: its types and shapes."""
    text = str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)).replace("'", "")
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _check_like(where: str, returned: PyTree, expected: PyTree, origin: str) -> None:
    """Refuses a structure, shapes or types other than expected."""
    if jax.tree.structure(returned) != jax.tree.structure(expected):
        raise ValueError(f"{where} returned {_shown(returned)}, it must be like {origin}: {_shown(expected)}")
    for (path, new), old in zip(jax.tree.leaves_with_path(returned), jax.tree.leaves(expected), strict=True):
        if new.shape != old.shape or new.dtype != old.dtype:
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"{where} returned {name or 'an array'} of {_shown(new)}, it must be like {origin}: {_shown(old)}"
            )


def _check_scalars(where: str, scalars: Any, what: str) -> None:
    if not isinstance(scalars, Mapping):
        raise ValueError(f"{where} returned {what} of type {type(scalars).__name__}, it must be a dict of scalars")
    for name, value in scalars.items():
        if getattr(value, "shape", None) != ():
            raise ValueError(f"{where} returned {what} {name!r} = {_shown(value)}, it must be a scalar")


def _check_output(where: str, output: Any, state: PyTree) -> PyTree:
    """The message of a client function's output; refuses an output that the engine cannot use."""
    if not isinstance(output, ClientOutput):
        raise ValueError(
            f"{where} returned {type(output).__name__}, it must return srp.ClientOutput(message, state, weight, info)"
        )
    if output.state is not None:
        _check_like(f"{where}: state", output.state, state, "what init_client makes")
    for path, leaf in jax.tree.leaves_with_path(output.message):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = jax.tree_util.keystr(path)
            raise ValueError(f"{where}: message{name} is {_shown(leaf)}, the engine averages floats; convert it")
    try:
        jax.tree.map(lambda weight, part: None, output.weight, output.message)
    except ValueError:
        raise ValueError(
            f"{where}: weight {_shown(output.weight)} is no prefix of the message {_shown(output.message)}; give a "
            "scalar, or one for each part"
        ) from None
    for leaf in jax.tree.leaves(output.weight):
        if leaf.shape != ():
            raise ValueError(f"{where}: weight is {_shown(leaf)}, it must be a scalar or scalars by part")
    _check_scalars(where, output.info, "info")
    return output.message


def check_algorithm(
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    evaluations: Sequence[str] = (),
    needs_gradient: bool = False,
) -> Shapes:
    """Traces every function of an algorithm that a run will call.

    Args:
        algorithm: checked.
        data: what it runs on.
        evaluations: names of those that will be called.
        needs_gradient: whether the policy asks for the gradient.

    Raises:
        ValueError: the first function that breaks the contract, and what it returned.
    """
    name, key, one = f"algorithm {algorithm.name!r}", _key(), _integer()
    train, test = jax.eval_shape(lambda data, i: (data.train_client(i), data.test_client(i)), data, one)
    server = _call(f"{name}: init", algorithm.init, "key, data", key, data)
    names = "key, server state, client data"
    state = _call(f"{name}: init_client", algorithm.init_client, names, key, server, train)

    def in_round(where: str, function: Callable[..., Any], names: str, *args: Any) -> Any:
        """`_call` with a context behind the arguments."""
        _check_arity(where, function, f"{names}, context")

        def with_context(integers: tuple[Array, ...], *args: Any) -> Any:
            index, stage, size, work = integers
            return function(*args, RoundContext(index, stage, size, data.num_clients, work))

        return _call(where, with_context, f"context, {names}", (one,) * 4, *args)

    def client(where: str, function: Callable[..., Any], broadcast: PyTree) -> PyTree:
        names = "key, broadcast, client state, client data"
        return _check_output(where, in_round(where, function, names, key, broadcast, state, train), state)

    def phase(field: str, phase: Phase) -> tuple[PyTree, PyTree]:
        if not isinstance(phase, Phase):
            raise ValueError(f"{name}: {field} is a {type(phase).__name__}, give srp.Phase(broadcast, client, server)")
        where = f"{name}: {field}"
        down = in_round(f"{where}.broadcast", phase.broadcast, "server state", server)
        message = client(f"{where}.client", phase.client, down)
        names = "key, server state, mean message"
        new = in_round(f"{where}.server", phase.server, names, key, server, message)
        _check_like(f"{where}.server", new, server, "what init makes")
        return message, down

    up, down = zip(*(phase(field, part) for field, part in _phases(algorithm)), strict=True)
    if algorithm.prepare is not None:
        phase("prepare", algorithm.prepare)
    if needs_gradient:
        if algorithm.gradient is None:
            raise ValueError(
                f"the participation policy needs the global gradient but {name} has no `gradient`; use a policy "
                "without a gradient criterion, such as participation.doubling"
            )
        up = (*up, client(f"{name}: gradient", algorithm.gradient, down[0]))
    metrics = _call(f"{name}: metrics", algorithm.metrics, "server state, data", server, data)
    _check_scalars(f"{name}: metrics", metrics, "metric")
    if algorithm.communicates is not None:
        where = f"{name}: communicates"
        says = in_round(where, algorithm.communicates, "server state", server)
        _check_like(where, says, jax.ShapeDtypeStruct((), jnp.bool_), "a flag")
    for evaluation in evaluations:
        where, personalize = f"{name}: evaluation {evaluation!r}", algorithm.evaluations[evaluation]
        _check_arity(where, personalize, "key, server state, client state, client data")

        score = functools.partial(_score, where, personalize)
        _call(where, score, "data, key, server state, client state, id", data, key, server, state, one)
    return Shapes(server, state, train, test, up, down)


def _phases(algorithm: FederatedAlgorithm) -> list[tuple[str, Phase]]:
    """Those of every round."""
    return [("round", algorithm.round)] + ([] if algorithm.finish is None else [("finish", algorithm.finish)])


def _score(
    where: str, personalize: Personalize, data: FederatedSource, key: Key, server: PyTree, state: PyTree, client: Array
) -> tuple[Array, Array]:
    predict = personalize(key, server, state, data.train_client(client))
    if not callable(predict):
        raise ValueError(f"{where} returned a {type(predict).__name__}, it must return a function, `predict`")
    return data.score(predict, data.test_client(client))


def check_policy(policy: ParticipationPolicy, num_clients: int) -> None:
    """Traces a policy.

    Raises:
        ValueError: a function that breaks the contract, and what it returned; what the policy itself refuses.
    """
    name, key, one = f"policy {policy.name!r}", _key(), _integer()
    scalar = jax.eval_shape(lambda: jnp.zeros(()))
    _check_arity(f"{name}: init", policy.init, "key, num_clients")
    state = _call(f"{name}: init", lambda key: policy.init(key, num_clients), "key", key)
    each = jax.eval_shape(lambda: jnp.zeros(num_clients))
    picked = _call(f"{name}: select", policy.select, "key, state, times", key, state, ClientTimes(each, each))
    if not (isinstance(picked, tuple) and len(picked) == 2 and isinstance(picked[0], Cohort)):
        raise ValueError(f"{name}: select returned {type(picked).__name__}, it must return (Cohort, state)")
    cohort, new = picked
    _check_like(f"{name}: select", new, state, "what init makes")
    pool = jnp.shape(cohort.client_ids)
    if len(pool) != 1 or not 1 <= pool[0] <= num_clients:
        raise ValueError(
            f"{name}: select returned client_ids of shape {pool}, they must be (pool,) ids, at most {num_clients}"
        )
    duration = None if cohort.duration is None else scalar
    expected = Cohort(_integer(*pool), one, _integer(*pool), one, duration)  # pyright: ignore[reportArgumentType]
    _check_like(f"{name}: select", cohort, expected, "a Cohort")
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    info: Any = RoundInfo(one, one, one, scalar, flag, scalar, flag, {})  # pyright: ignore[reportArgumentType]
    updated = _call(f"{name}: update", policy.update, "state, info", state, info)
    _check_like(f"{name}: update", updated, state, "what init makes")


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
        raise ValueError(f"{name}: sample returned {type(sampled).__name__}, it must return (ClientTimes, state)")
    times, new = sampled
    each = jax.eval_shape(lambda: jnp.zeros(num_clients))
    _check_like(f"{name}: sample", times, ClientTimes(each, each), "a time for each client")
    _check_like(f"{name}: sample", new, state, "what init makes")
