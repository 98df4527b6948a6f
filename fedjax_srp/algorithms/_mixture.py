"""Weights of a mixture: a quadratic program over the simplex."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array

NUM_STEPS = 1000


def best_mixture(costs: Array, allowed: Array) -> Array:
    """The minimizer of a^T P a over the simplex.

    P is (n, n), allowed (n,) bool, the weights (n,): 0 where not allowed.

    Accelerated projected gradient steps (Beck and Teboulle, 2009), restarted as by
    O'Donoghue and Candes (2015), with the projection of Duchi et al. (2008).
    """
    # Other costs would not change the minimum, but they would shorten the steps.
    costs = jnp.where(allowed[:, None] & allowed[None], costs, jnp.zeros((), costs.dtype))
    order = jnp.arange(1, costs.shape[0] + 1, dtype=costs.dtype)
    curvature = jnp.max(jnp.sum(jnp.abs(costs), axis=1))
    curvature = jnp.maximum(curvature, jnp.finfo(costs.dtype).tiny)

    def projected(point: Array) -> Array:
        # Entries that are not allowed lie below all others by 1, so they become 0.
        largest = jnp.max(jnp.where(allowed, point, -jnp.inf))
        point = jnp.where(allowed, point, largest - 1)
        excess = (jnp.cumsum(jnp.sort(point)[::-1]) - 1) / order
        return jnp.maximum(point - jnp.max(excess), 0)

    def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        weights, extrapolated, t = carry
        slope = jnp.matmul(costs, extrapolated, precision="highest")
        new = projected(extrapolated - slope / curvature)
        # A step uphill restarts the momentum.
        is_uphill = jnp.sum((extrapolated - new) * (new - weights)) > 0
        t = jnp.where(is_uphill, 1.0, t)
        next_t = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return new, new + (t - 1) / next_t * (new - weights), next_t

    start = projected(jnp.zeros_like(order))
    carry = (start, start, jnp.ones((), costs.dtype))
    weights, _, _ = jax.lax.fori_loop(0, NUM_STEPS, step, carry)
    return weights
