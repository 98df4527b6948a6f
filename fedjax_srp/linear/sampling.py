"""Samples of a client of a linear task, matrices with the Gram matrix of such samples, and least squares on them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Key, named_key
from fedjax_srp.linear.decompositions import nonzero, norm
from fedjax_srp.linear.subspace import exact_matmul


class LinearClient(NamedTuple):
    """The truth of one client; algorithms may only draw samples from it."""

    representation: Array  # (d, k) B*, orthonormal columns
    head: Array  # (k,) w_i*
    noise_std: Array  # () sigma
    key: Key  # of the client's fixed samples


@exact_matmul
def draw_batch(key: Key, client: LinearClient, samples: int) -> tuple[Array, Array]:
    """Samples of a client: X (samples, d) standard normal and y = X B* w_i* + z."""
    dim = client.representation.shape[0]
    x = jax.random.normal(named_key(key, "x"), (samples, dim))
    noise = jax.random.normal(named_key(key, "noise"), (samples,))
    return x, x @ (client.representation @ client.head) + client.noise_std * noise


def draw_design(key: Key, samples: int, columns: int) -> Array:
    """A matrix (rows, columns) whose Gram matrix has the law of that of a standard normal (samples, columns) matrix.

    With enough samples it is Bartlett's triangular root of a Wishart matrix, which costs columns^2 / 2 draws instead of
    samples * columns; rows is then `columns`, otherwise `samples`.
    """
    if samples < 2 * columns:
        return jax.random.normal(key, (samples, columns))
    above = jnp.triu_indices(columns, 1)
    normal = jax.random.normal(named_key(key, "normal"), (above[0].shape[0],))  # a flat draw vectorises best
    dof = samples - jnp.arange(columns)
    diagonal = jnp.sqrt(_chi_squared(named_key(key, "chi"), dof.astype(normal.dtype)))
    return jnp.diag(diagonal).at[above].set(normal)


def _chi_squared(key: Key, dof: Array) -> Array:
    """Chi-squared draws for degrees of freedom (n,) of at least 2, by Marsaglia and Tsang (2000).

    `jax.random.gamma` has the same law; one key and one loop for all entries make this five times as fast under vmap.
    """
    n = dof.shape[0]
    d = dof / 2 - 1 / 3
    c = 1 / jnp.sqrt(9 * d)
    lowest = -1 + jnp.finfo(dof.dtype).epsneg

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        trip, accepted, value = state
        u = jax.random.uniform(jax.random.fold_in(key, trip), (2 * n,), dof.dtype, lowest, 1)  # on (-1, 1)
        x = jnp.sqrt(2) * jax.lax.erf_inv(u[:n])  # normal
        log_u = jnp.log1p(u[n:]) - jnp.log(2)
        v = jnp.maximum(1 + c * x, 0) ** 3
        log_v = jnp.log(jnp.where(v > 0, v, 1))
        accept = (v > 0) & (log_u < x**2 / 2 + d * (1 - v + log_v))
        return trip + 1, accepted | accept, jnp.where(accepted, value, d * v)

    start = jnp.int32(0), jnp.zeros(dof.shape, jnp.bool_), jnp.zeros_like(dof)
    return 2 * jax.lax.while_loop(lambda state: ~jnp.all(state[1]), attempt, start)[2]


def least_squares(features: Array, y: Array) -> Array:
    """The w of smallest norm among those that minimise ||y - F w||: never nan, for any rank of F.

    By modified Gram-Schmidt, on the columns of F and then on the rows of R, whose short loops vmap into plain vector
    operations, unlike LAPACK's call for each client. A column counts as dependent on those before it when less
    than 32 k eps of its length is left.

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
    rows, targets = [], []
    for j in range(k):  # F = Q R, R w = Q^T y, a column of Q and a row of R at a time
        q = _unit(columns[j], tolerance * norm(features[:, j]))
        coefficients = [jnp.sum(q * column) for column in columns[j:]]
        columns[j:] = [column - q * r for column, r in zip(columns[j:], coefficients, strict=True)]
        rows.append(jnp.stack([*[zero] * j, *coefficients]))
        targets.append(jnp.sum(q * y))
        y = y - q * targets[j]
    w = jnp.zeros_like(rows[0])
    basis: list[Array] = []
    for row, target in zip(rows, targets, strict=True):  # each row fixes w along its new direction
        rest = row
        for u in basis:
            rest = rest - u * jnp.sum(u * rest)
        basis.append(_unit(rest, zero))
        length = norm(rest)
        w = w + basis[-1] * jnp.where(length > 0, (target - jnp.sum(row * w)) / nonzero(length), 0)
    return w


def _unit(x: Array, threshold: Array) -> Array:
    """x / ||x||, or zero where ||x|| does not exceed the threshold."""
    length = norm(x)
    return jnp.where(length > threshold, x / jnp.where(length > threshold, length, 1), 0)
