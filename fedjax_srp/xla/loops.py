"""Loops that work under vmap, XLA and differentiation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from fedjax_srp.base import Array

_reversible: ContextVar[int] = ContextVar(
    "reversible", default=0
)  # most units of work of a client; 0: not reversible


@contextlib.contextmanager
def reversible(most_work: int) -> Iterator[None]:
    """Make loops traced in this context differentiable in reverse mode, which needs static trip counts.

    Args:
        most_work: most units of work of a client, for a static bound of loops; 0: leave loops as they are.
    """
    token = _reversible.set(most_work)
    try:
        yield
    finally:
        _reversible.reset(token)


def reversible_work() -> int:
    """The most units of work of a client inside `reversible`; else 0."""
    return _reversible.get()


def most_work() -> int:
    """The most units of work of a client inside `reversible`; else 1."""
    return _reversible.get() or 1


def fori_loop(
    upper: Array, body: Callable[[Any, Any], Any], start: Any, at_most: int
) -> Any:
    """`jax.lax.fori_loop` from 0; inside `reversible`, with a static bound and masked trips.

    Args:
        upper: () int32, number of trips.
        body: (index, carry) -> carry.
        start: initial carry.
        at_most: bound of `upper`; if a reversible loop exceeds it, floats become nan.
    """
    if not _reversible.get():
        return jax.lax.fori_loop(jnp.int32(0), upper, body, start)

    def masked(carry: Any, index: Array) -> tuple[Any, None]:
        return jax.tree.map(
            lambda new, old: jnp.where(index < upper, new, old), body(index, carry), carry
        ), None

    end = jax.lax.scan(masked, start, jnp.arange(at_most, dtype=jnp.int32))[0]
    is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.map(
        lambda leaf: (
            jnp.where(upper > at_most, jnp.nan, leaf) if is_float(leaf) else leaf
        ),
        end,
    )


def barrier(tree: Any) -> Any:
    """`jax.lax.optimization_barrier`; nothing inside `reversible`, since it has no gradient."""
    return tree if _reversible.get() else jax.lax.optimization_barrier(tree)


def batch_max(bound: Array) -> Array:
    """A loop bound that is one number under vmap: the largest of the batch.

    A while loop with a batched predicate selects on its whole carry in every trip. With this bound the predicate is not
    batched, and the body of the loop must mask the elements that are done.
    """
    return bound if _reversible.get() else _batch_max(bound)


@custom_vmap
def _batch_max(bound: Array) -> Array:
    return bound


@_batch_max.def_vmap
def _batch_max_rule(
    axis_size: int, in_batched: list[bool], bound: Array
) -> tuple[Array, bool]:
    del axis_size
    return _batch_max(jnp.max(bound, axis=0) if in_batched[0] else bound), False


def sequential(function: Callable) -> Callable:
    """Make vmap run `function` on one element at a time, also if it closes over tracers.

    Take gradients inside `function`. A vmap around it must be under `jax.jit` if it closes over mapped values.
    """
    if _reversible.get():
        return function

    def run(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

        def plain(*values: Array) -> list[Array]:
            captured, leaves = values[: len(closed.consts)], values[len(closed.consts) :]
            return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, captured))(*leaves)

        hoisted = custom_vmap(plain)

        @hoisted.def_vmap
        def one_by_one(
            axis_size: int, in_batched: list[bool], *values: Array
        ) -> tuple[list[Array], list[bool]]:
            del axis_size
            batched = [value for value, of in zip(values, in_batched, strict=True) if of]
            if not batched:  # a vmap of tangents alone, as in `jax.jacfwd`
                out = plain(*values)
                return out, [False] * len(out)

            def one(elements: list[Array]) -> list[Array]:
                rest = iter(elements)
                return hoisted(
                    *(
                        next(rest) if of else value
                        for value, of in zip(values, in_batched, strict=True)
                    )
                )

            out = jax.lax.map(one, batched)
            return out, [True] * len(out)

        return jax.tree.unflatten(
            jax.tree.structure(shapes), hoisted(*closed.consts, *jax.tree.leaves(args))
        )

    return run
