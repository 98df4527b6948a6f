"""BatchNorm: its running statistics are among the parameters, and follow the batches of local training.

A layer whose module holds `flax.linen.BatchNorm` has its statistics under `STATISTICS` in its parameters, so they are
averaged, personalized and checkpointed as any leaf. No optimizer moves them. In training a batch is normalised by the
mean and variance of its real examples, and the cotangent of a statistic is its difference to the new value, which local
training subtracts. Evaluation uses the statistics unchanged.
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
def counted(weights: Array) -> Iterator[None]:
    """Set, for models trained in this context, the rows of a batch that are examples: positive weights, (batch,).

    A batch without examples is normalised by all its rows: its loss does not count, but must not be nan.
    """
    token = _weights.set(weights)
    try:
        yield
    finally:
        _weights.reset(token)


def _decided(in_training: bool) -> Callable[..., Any]:
    """Set the mode and the counted rows of every BatchNorm within a module."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module, weights = context.module, _weights.get()
        if not isinstance(module, nn.BatchNorm) or context.method_name != "__call__":
            return call(*args, **kwargs)
        if module.use_running_average is not None:
            raise ValueError(
                f"BatchNorm(use_running_average={module.use_running_average}): local training and evaluations decide "
                "that; leave it out"
            )
        mask = None
        if in_training and weights is not None:
            is_real = (weights > 0) | ~jnp.any(weights > 0)
            mask = is_real.reshape(-1, *(1,) * (args[0].ndim - 1))
        return call(args[0], use_running_average=not in_training, mask=mask)

    return intercept


def init_module(module: nn.Module, key: Key, x: Array) -> tuple[PyTree, set[str]]:
    """The parameters of a module including its statistics, and the names of its other collections."""
    with nn.intercept_methods(_decided(in_training=False)):
        variables: Any = module.init(key, x)
    params = variables.get("params", {})
    if STATISTICS in variables:
        dtype = jnp.result_type(*jax.tree.leaves(params)) if params else x.dtype
        params = {**params, STATISTICS: jax.tree.map(lambda leaf: leaf.astype(dtype), variables[STATISTICS])}
    return params, {*variables} - {"params", STATISTICS}


def apply_module(module: nn.Module, params: PyTree, x: Array, in_training: bool) -> Array:
    """`module(x)`; in training with the statistics of `x`, and cotangents for the running ones."""
    if STATISTICS not in params:
        return module.apply({"params": params}, x)  # type: ignore[return-value]
    held = params[STATISTICS]
    weights = {name: leaf for name, leaf in params.items() if name != STATISTICS}
    variables = {"params": weights, STATISTICS: jax.lax.stop_gradient(held)}
    with nn.intercept_methods(_decided(in_training)):
        if not in_training:
            return module.apply(variables, x)  # type: ignore[return-value]
        out, new = module.apply(variables, x, mutable=[STATISTICS])
    return _moving(out, held, new[STATISTICS])


@jax.custom_vjp
def _moving(out: Array, held: PyTree, new: PyTree) -> Array:
    """`out`; the cotangent of the statistics `held` is their difference to the `new` ones."""
    del held, new
    return out


def _moving_forward(out: Array, held: PyTree, new: PyTree) -> tuple[Array, PyTree]:
    return out, jax.tree.map(jnp.subtract, held, new)


def _moving_backward(apart: PyTree, cotangent: Array) -> tuple[Array, PyTree, PyTree]:
    return cotangent, apart, jax.tree.map(jnp.zeros_like, apart)


_moving.defvjp(_moving_forward, _moving_backward)


def is_statistic(params: PyTree) -> PyTree:
    """A flag for each leaf: True for running statistics."""
    return jax.tree.map_with_path(lambda path, leaf: DictKey(STATISTICS) in path, params)


def has_statistics(params: PyTree) -> bool:
    """True if there is a running statistic among the parameters."""
    return any(jax.tree.leaves(is_statistic(params)))


def is_batch_norm(params: PyTree) -> PyTree:
    """A flag for each leaf: True for running statistics, and for the scale and bias of the same modules."""

    def owner(path: Any) -> tuple[Any, ...]:
        return tuple(key for key in path[:-1] if key != DictKey(STATISTICS))

    owners = {owner(path) for path, _ in jax.tree.leaves_with_path(params) if DictKey(STATISTICS) in path}
    return jax.tree.map_with_path(lambda path, leaf: owner(path) in owners, params)


def without_statistics(gradient: PyTree) -> PyTree:
    """A gradient with zeros for statistics, which no optimizer moves."""
    if not has_statistics(gradient):
        return gradient
    return jax.tree.map(lambda leaf, of: jnp.zeros_like(leaf) if of else leaf, gradient, is_statistic(gradient))


def with_statistics(params: PyTree, old: PyTree, objective: Callable[[PyTree, Array], Array], weights: Array) -> PyTree:
    """Parameters after a step, with the statistics of `old` updated by the batch of `objective`.

    The compiler reuses the gradient of the step; a batch without examples changes nothing.
    """
    if not has_statistics(params):
        return params
    apart = jax.grad(objective)(old, weights)

    def settle(new: Array, old: Array, apart: Array, of: bool) -> Array:
        return jnp.where(jnp.any(weights > 0), old - apart, old) if of else new

    return jax.tree.map(settle, params, old, apart, is_statistic(params))
