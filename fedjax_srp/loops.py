"""Ways to steer what vmap and XLA do to a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from fedjax_srp.base import Array


@custom_vmap
def batch_max(bound: Array) -> Array:
    """A loop bound that stays one number under vmap: the largest of the batch.

    A while loop whose predicate is batched selects on its whole carry in every trip; with this bound the predicate
    stays plain, and whoever is done earlier has to be masked by the loop's body.
    """
    return bound


@batch_max.def_vmap
def _batch_max_rule(axis_size: int, in_batched: list[bool], bound: Array) -> tuple[Array, bool]:
    del axis_size
    return batch_max(jnp.max(bound, axis=0) if in_batched[0] else bound), False


def sequential(function: Callable) -> Callable:
    """Makes vmap run `function` on one element after the other; tracers it closes over are passed along.

    Gradients have to be taken inside `function`. A vmap around it has to be under `jax.jit` if it closes over what the
    vmap maps.
    """

    def run(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

        def hoisted(captured: list[Any], *args: Any) -> Any:
            traced = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, captured))
            return jax.tree.unflatten(jax.tree.structure(shapes), traced(*jax.tree.leaves(args)))

        return sequential_vmap(hoisted)(closed.consts, *args)

    return run
