"""Weights of a mixture: a quadratic program over the simplex."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array

NUM_STEPS = 1000


def best_mixture(costs: Array, allowed: Array) -> Array:
    """The minimizer of a^T P a over the simplex: P (n, n), allowed (n,) bool -> weights (n,), 0 where not allowed.

    Accelerated projected gradient steps (Beck and Teboulle, 2009), restarted as by O'Donoghue and Candes (2015), with
    the projection of Duchi et al. (2008).
    """
    # costs of others would change no minimum, but shorten the steps
    costs = jnp.where(allowed[:, None] & allowed[None], costs, jnp.zeros((), costs.dtype))
    order = jnp.arange(1, costs.shape[0] + 1, dtype=costs.dtype)
    curvature = jnp.maximum(
        jnp.max(jnp.sum(jnp.abs(costs), axis=1)), jnp.finfo(costs.dtype).tiny
    )

    def projected(point: Array) -> Array:
        point = jnp.where(
            allowed, point, jnp.max(jnp.where(allowed, point, -jnp.inf)) - 1
        )  # becomes 0
        excess = (jnp.cumsum(jnp.sort(point)[::-1]) - 1) / order
        return jnp.maximum(point - jnp.max(excess), 0)

    def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        weights, extrapolated, t = carry
        new = projected(
            extrapolated
            - jnp.matmul(costs, extrapolated, precision="highest") / curvature
        )
        t = jnp.where(
            jnp.sum((extrapolated - new) * (new - weights)) > 0, 1.0, t
        )  # uphill: restart the momentum
        next_t = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return new, new + (t - 1) / next_t * (new - weights), next_t

    start = projected(jnp.zeros_like(order))
    return jax.lax.fori_loop(
        0, NUM_STEPS, step, (start, start, jnp.ones((), costs.dtype))
    )[0]
