"""Samples of a client of a linear task, shorter designs for them, and least squares."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Key, named_key
from fedjax_srp.linear.subspace import exact_matmul
from fedjax_srp.parts.pytrees import register

# Distribution of an input, independent with mean 0 and variance 1 each.
Design = Literal["gaussian", "rademacher", "uniform"]


@dataclasses.dataclass(frozen=True)
class LinearClient:
    """The true parameters of one client, a pytree; algorithms may use them only to draw samples."""

    representation: Array  # (d, k) B*, orthonormal columns
    head: Array  # (k,) w_i*
    noise_std: Array  # () sigma
    key: Key  # of the client's fixed samples
    design: Design = "gaussian"


register(LinearClient, "design")


def _inputs(key: Key, design: Design, shape: tuple[int, int]) -> Array:
    if design == "gaussian":
        return jax.random.normal(key, shape)
    if design == "rademacher":
        return jax.random.rademacher(key, shape, jnp.zeros(()).dtype)
    bound = math.sqrt(3)
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


@exact_matmul
def draw_batch(key: Key, client: LinearClient, samples: int) -> tuple[Array, Array]:
    """Draw samples of a client: X (samples, d) by its design, y = X B* w_i* + z with normal z."""
    dim = client.representation.shape[0]
    x = _inputs(named_key(key, "x"), client.design, (samples, dim))
    noise = jax.random.normal(named_key(key, "noise"), (samples,))
    return x, x @ (client.representation @ client.head) + client.noise_std * noise


def draw_design(key: Key, samples: int, columns: int) -> Array:
    """Draw a matrix with the Gram matrix, in distribution, of (samples, columns) standard normals.

    With at least 2 * columns samples it is Bartlett's triangular root of a Wishart matrix, with
    rows = columns and columns^2 / 2 draws instead of samples * columns; otherwise it is a standard
    normal matrix with rows = samples.
    """
    if samples < 2 * columns:
        return jax.random.normal(key, (samples, columns))
    above = jnp.triu_indices(columns, 1)
    normal = jax.random.normal(
        named_key(key, "normal"), (above[0].shape[0],)
    )  # a flat draw vectorises best
    dof = samples - jnp.arange(columns)
    diagonal = jnp.sqrt(_chi_squared(named_key(key, "chi"), dof.astype(normal.dtype)))
    return jnp.diag(diagonal).at[above].set(normal)


def _chi_squared(key: Key, dof: Array) -> Array:
    """Draw chi-squared numbers for degrees of freedom (n,) >= 2, by Marsaglia and Tsang (2000).

    `jax.random.gamma` is five times slower under vmap: here one key and one loop serve all entries.
    """
    n = dof.shape[0]
    d = dof / 2 - 1 / 3
    c = 1 / jnp.sqrt(9 * d)
    lowest = -1 + jnp.finfo(dof.dtype).epsneg

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        iteration, accepted, value = state
        u = jax.random.uniform(
            jax.random.fold_in(key, iteration), (2 * n,), dof.dtype, lowest, 1
        )  # on (-1, 1)
        x = jnp.sqrt(2) * jax.lax.erf_inv(u[:n])  # normal
        log_u = jnp.log1p(u[n:]) - jnp.log(2)
        v = jnp.maximum(1 + c * x, 0) ** 3
        log_v = jnp.log(jnp.where(v > 0, v, 1))
        accept = (v > 0) & (log_u < x**2 / 2 + d * (1 - v + log_v))
        return iteration + 1, accepted | accept, jnp.where(accepted, value, d * v)

    def is_missing_one(state: tuple[Array, Array, Array]) -> Array:
        return ~jnp.all(state[1])

    start = (jnp.int32(0), jnp.zeros(dof.shape, jnp.bool_), jnp.zeros_like(dof))
    _, _, half = jax.lax.while_loop(is_missing_one, attempt, start)
    return 2 * half


def nonzero(x: Array) -> Array:
    """Replace zeros by 1, for divisions."""
    return jnp.where(x == 0, 1, x)


def least_squares(features: Array, y: Array) -> Array:
    """Return the smallest w that minimises ||y - F w||; it is never nan, for any rank of F.

    The method is modified Gram-Schmidt on the columns of F and then on the rows of R. Its short
    loops vmap into vector operations, while LAPACK is called for each client. A column counts as
    dependent on earlier ones if its residual is less than 32 k eps of its length.

    Args:
        features: (m, k) F; fewer samples than columns, duplicates and zeros are fine.
        y: (m,).

    Returns:
        (k,) w.
    """
    k = features.shape[1]
    tolerance = 32 * k * jnp.finfo(features.dtype).eps
    zero = jnp.zeros((), features.dtype)
    columns = [features[:, j] for j in range(k)]
    rows = []
    targets = []
    # F = Q R, R w = Q^T y, a column of Q and a row of R at a time
    for j in range(k):
        q = _unit(columns[j], tolerance * jnp.linalg.norm(features[:, j]))
        coefficients = [jnp.sum(q * column) for column in columns[j:]]
        for i, coefficient in enumerate(coefficients, start=j):
            columns[i] = columns[i] - q * coefficient
        rows.append(jnp.stack([zero] * j + coefficients))
        targets.append(jnp.sum(q * y))
        y = y - q * targets[j]
    w = jnp.zeros_like(rows[0])
    basis: list[Array] = []
    # each row determines w along its new direction
    for row, target in zip(rows, targets, strict=True):
        residual = row
        for u in basis:
            residual = residual - u * jnp.sum(u * residual)
        basis.append(_unit(residual, zero))
        length = jnp.linalg.norm(residual)
        step = (target - jnp.sum(row * w)) / nonzero(length)
        w = w + basis[-1] * jnp.where(length > 0, step, 0)
    return w


def _unit(x: Array, threshold: Array) -> Array:
    """Return x / ||x||, or zero unless ||x|| exceeds the threshold."""
    length = jnp.linalg.norm(x)
    is_long = length > threshold
    return jnp.where(is_long, x / jnp.where(is_long, length, 1), 0)
