"""BatchNorm, with its running statistics among the parameters.

A layer whose module has a `flax.linen.BatchNorm` keeps the statistics under `STATISTICS` in its
parameters, so they are averaged, personalized and checkpointed like any leaf. Optimizers do not
change them. In training a batch is normalised by the mean and variance of its real examples, and
the cotangent of a statistic is its difference from the new value, which local training subtracts.
Evaluation uses the statistics unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import DictKey

from fedjax_srp.base import Array, Key, PyTree

STATISTICS = "batch_stats"  # flax's name of the collection
_weights: ContextVar[Array | None] = ContextVar("weights", default=None)


@contextlib.contextmanager
def example_weights(weights: Array) -> Iterator[None]:
    """Set the weights (batch,) of a batch's rows for models applied in this context.

    Padding has weight 0. A batch of padding alone is normalised by all its rows: its loss has no
    weight, but must not be nan.
    """
    token = _weights.set(weights)
    try:
        yield
    finally:
        _weights.reset(token)


def weights_of_batch(rows: int, dtype: Any) -> Array:
    """The weights (rows,) of a batch in training, which sum to 1 or, without examples, to 0.

    Outside of `example_weights` all rows count the same.
    """
    weights = _weights.get()
    if weights is None:
        return jnp.full(rows, 1 / rows, dtype)
    return weights.astype(dtype)


def _batch_norm_mode(in_training: bool) -> Callable[..., Any]:
    """An interceptor of flax that sets the mode and the mask of every BatchNorm in a module."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        weights = _weights.get()
        if not isinstance(module, nn.BatchNorm) or context.method_name != "__call__":
            return call(*args, **kwargs)
        if module.use_running_average is not None:
            raise ValueError(
                f"BatchNorm(use_running_average={module.use_running_average}): "
                "local training and evaluations set it; leave it out"
            )
        mask = None
        if in_training and weights is not None:
            is_real = (weights > 0) | ~jnp.any(weights > 0)
            mask = is_real.reshape(-1, *(1,) * (args[0].ndim - 1))
        return call(args[0], use_running_average=not in_training, mask=mask)

    return intercept


def init_module(module: nn.Module, key: Key, x: Array) -> tuple[PyTree, set[str]]:
    """Return a module's parameters with its statistics, and names of its other collections."""
    with nn.intercept_methods(_batch_norm_mode(in_training=False)):
        variables: Any = module.init(key, x)
    params = variables.get("params", {})
    if STATISTICS in variables:
        dtype = jnp.result_type(*jax.tree.leaves(params)) if params else x.dtype
        statistics = jax.tree.map(lambda leaf: leaf.astype(dtype), variables[STATISTICS])
        params = {**params, STATISTICS: statistics}
    return params, {*variables} - {"params", STATISTICS}


def apply_module(module: nn.Module, params: PyTree, x: Array, in_training: bool) -> Array:
    """Return `module(x)`; in training, with the statistics of `x` and cotangents for others."""
    if STATISTICS not in params:
        return module.apply({"params": params}, x)  # type: ignore[return-value]
    statistics = params[STATISTICS]
    trained = {name: leaf for name, leaf in params.items() if name != STATISTICS}
    variables = {"params": trained, STATISTICS: jax.lax.stop_gradient(statistics)}
    with nn.intercept_methods(_batch_norm_mode(in_training)):
        if not in_training:
            return module.apply(variables, x)  # type: ignore[return-value]
        out, new = module.apply(variables, x, mutable=[STATISTICS])
    return _with_cotangent(out, statistics, new[STATISTICS])


@jax.custom_vjp
def _with_cotangent(out: Array, old: PyTree, new: PyTree) -> Array:
    """Return `out`; the cotangent of the statistics `old` is their difference from the `new`."""
    return out


def _forward(out: Array, old: PyTree, new: PyTree) -> tuple[Array, PyTree]:
    return out, jax.tree.map(jnp.subtract, old, new)


def _backward(difference: PyTree, cotangent: Array) -> tuple[Array, PyTree, PyTree]:
    return cotangent, difference, jax.tree.map(jnp.zeros_like, difference)


_with_cotangent.defvjp(_forward, _backward)


def is_statistic(params: PyTree) -> PyTree:
    """A flag for each leaf: True for running statistics."""
    return jax.tree.map_with_path(lambda path, leaf: DictKey(STATISTICS) in path, params)


def has_statistics(params: PyTree) -> bool:
    """True if the parameters include running statistics."""
    return any(jax.tree.leaves(is_statistic(params)))


def is_batch_norm(params: PyTree) -> PyTree:
    """Return flags of leaves: running statistics, and scale and bias of the same modules."""

    def owner(path: Any) -> tuple[Any, ...]:
        return tuple(key for key in path[:-1] if key != DictKey(STATISTICS))

    owners = {
        owner(path)
        for path, _ in jax.tree.leaves_with_path(params)
        if DictKey(STATISTICS) in path
    }
    return jax.tree.map_with_path(lambda path, leaf: owner(path) in owners, params)


def _map_statistics(
    function: Callable[..., Array], params: PyTree, *others: PyTree
) -> PyTree:
    """Apply a function to the running statistics, and keep all other leaves of `params`."""

    def mapped(path: Any, leaf: Array, *rest: Array) -> Array:
        if DictKey(STATISTICS) not in path:
            return leaf
        return function(leaf, *rest)

    return jax.tree.map_with_path(mapped, params, *others)


def without_statistics(gradient: PyTree) -> PyTree:
    """Return a gradient with zeros for statistics, so that no optimizer changes them."""
    return _map_statistics(jnp.zeros_like, gradient)


def with_statistics_of(params: PyTree, others: PyTree) -> PyTree:
    """Return parameters with the statistics of others."""
    return _map_statistics(lambda _, other: other, params, others)


def with_statistics(
    params: PyTree, old: PyTree, gradient: PyTree, weights: Array
) -> PyTree:
    """Return parameters after a step, with the statistics of `old` updated by the batch.

    The plain gradient of the batch's loss has their differences; a batch without examples leaves
    the statistics unchanged.
    """

    def updated(new: Array, old: Array, difference: Array) -> Array:
        return jnp.where(jnp.any(weights > 0), old - difference, old)

    return _map_statistics(updated, params, old, gradient)
