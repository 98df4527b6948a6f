"""Weights of a mixture: a quadratic programme over the simplex."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array

STEPS = 1000


def best_mixture(costs: Array, allowed: Array) -> Array:
    """The minimum of a^T P a over the simplex: P (n, n), (n,) bool -> (n,) weights; those not allowed are 0.

    Accelerated projected gradient steps (Beck and Teboulle, 2009), restarted as by O'Donoghue and Candes (2015), with
    the projection of Duchi et al. (2008).
    """
    order = jnp.arange(1, costs.shape[0] + 1, dtype=costs.dtype)
    curvature = jnp.maximum(jnp.max(jnp.sum(jnp.abs(costs), axis=1)), jnp.finfo(costs.dtype).tiny)

    def projected(point: Array) -> Array:
        point = jnp.where(allowed, point, jnp.max(jnp.where(allowed, point, -jnp.inf)) - 1)  # becomes 0
        excess = (jnp.cumsum(jnp.sort(point)[::-1]) - 1) / order
        return jnp.maximum(point - jnp.max(excess), 0)

    def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        weights, ahead, t = carry
        new = projected(ahead - jnp.matmul(costs, ahead, precision="highest") / curvature)
        t = jnp.where(jnp.sum((ahead - new) * (new - weights)) > 0, 1.0, t)  # uphill: forget the momentum
        later = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return new, new + (t - 1) / later * (new - weights), later

    start = projected(jnp.zeros_like(order))
    return jax.lax.fori_loop(0, STEPS, step, (start, start, jnp.ones((), costs.dtype)))[0]
