"""Loops that work under vmap, XLA and differentiation."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

# Most units of work of a client; 0: not reversible.
_reversible: ContextVar[int] = ContextVar("reversible", default=0)
_eager: ContextVar[bool] = ContextVar("eager", default=False)


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


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run the work of one client operation by operation, for a debugger: nothing is traced but gradients."""
    token = _eager.set(True)
    try:
        with jax.disable_jit():
            yield
    finally:
        _eager.reset(token)


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
        keep = lambda new, old: jnp.where(index < upper, new, old)
        return jax.tree.map(keep, body(index, carry), carry), None

    def nan_beyond(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(upper > at_most, jnp.nan, leaf)

    end, _ = jax.lax.scan(masked, start, jnp.arange(at_most, dtype=jnp.int32))
    return jax.tree.map(nan_beyond, end)


def barrier(tree: Any) -> Any:
    """`jax.lax.optimization_barrier`, which has no gradient; the identity inside `reversible`."""
    if _reversible.get():
        return tree
    return jax.lax.optimization_barrier(tree)


def batch_max(bound: Array) -> Array:
    """A loop bound that is one number under vmap: the largest of the batch.

    A while loop with a batched predicate selects on its whole carry in every trip. With this bound the predicate is not
    batched, and the body of the loop must mask the elements that are done.
    """
    if _reversible.get():
        return bound
    return _batch_max(bound)


@custom_vmap
def _batch_max(bound: Array) -> Array:
    return bound


@_batch_max.def_vmap
def _batch_max_rule(
    axis_size: int, in_batched: list[bool], bound: Array
) -> tuple[Array, bool]:
    del axis_size
    if in_batched[0]:
        bound = jnp.max(bound, axis=0)
    return _batch_max(bound), False


def mapped_with(by: Array, tree: Any) -> Any:
    """The same tree, with an entry for each element of every vmap that maps `by`.

    A loop whose carry begins without this axis and gains it in the first trip is traced once more under vmap.
    """
    if _reversible.get() or _eager.get():
        return tree
    return _mapped_with(by, tree)


@custom_vmap
def _mapped_with(by: Array, tree: Any) -> Any:
    return tree


@_mapped_with.def_vmap
def _mapped_with_rule(
    axis_size: int, in_batched: list[Any], by: Array, tree: Any
) -> tuple[Any, Any]:
    by_is_batched, of_tree = in_batched
    # A vmap of tangents alone, as in `jax.jacfwd`, maps none of them.
    if not any(jax.tree.leaves(in_batched)):
        return tree, of_tree

    def with_axis(leaf: Array, is_batched: bool) -> Array:
        if is_batched or not by_is_batched:
            return leaf
        return jnp.broadcast_to(leaf, (axis_size, *leaf.shape))

    is_batched = jax.tree.map(lambda leaf: leaf or by_is_batched, of_tree)
    return _mapped_with(by, jax.tree.map(with_axis, tree, of_tree)), is_batched


def sequential(function: Callable) -> Callable:
    """Make vmap run `function` on one element at a time, also if it closes over tracers.

    Take gradients inside `function`. A vmap around it must be under `jax.jit` if it closes over mapped values.
    """
    if _reversible.get() or _eager.get():
        return function

    def run(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        num_captured = len(closed.consts)

        def plain(*values: Array) -> list[Array]:
            captured = values[:num_captured]
            program = ClosedJaxpr(closed.jaxpr, captured)
            return jaxpr_as_fun(program)(*values[num_captured:])

        hoisted = custom_vmap(plain)

        @hoisted.def_vmap
        def one_by_one(
            axis_size: int, in_batched: list[bool], *values: Array
        ) -> tuple[list[Array], list[bool]]:
            del axis_size
            if not any(in_batched):  # a vmap of tangents alone, as in `jax.jacfwd`
                results = plain(*values)
                return results, [False] * len(results)

            def one(elements: list[Array]) -> list[Array]:
                remaining = iter(elements)
                of_one = list(values)
                for i, is_batched in enumerate(in_batched):
                    if is_batched:
                        of_one[i] = next(remaining)
                return hoisted(*of_one)

            batched = list(itertools.compress(values, in_batched))
            results = jax.lax.map(one, batched)
            return results, [True] * len(results)

        leaves = hoisted(*closed.consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return run
