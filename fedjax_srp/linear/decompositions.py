"""Decompositions of small matrices by products and sums, for accelerators.

There, JAX's decompositions are library calls, which CUDA graphs cannot contain. For a few columns the loops here are
short, and as robust as LAPACK for ill-conditioned and singular matrices. (On a CPU LAPACK is faster.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array

MAX_COLUMNS = 16  # more make the program long
SWEEPS = (
    10  # of Jacobi's method, which converges quadratically: 16 columns of float64 need 7
)


def gram_schmidt(matrix: Array) -> Array:
    """Return the Q factor of a QR decomposition whose R has no negative diagonal entry, by Gram-Schmidt done twice.

    The second pass makes the columns orthogonal up to rounding for any condition number (Giraud, Langou, Rozloznik and
    van den Eshof 2005). A column counts as dependent on earlier ones if its residual is at most 4 k eps of its length;
    it is replaced by the unit vector furthest from their span. A column that is not finite and later ones become nan.

    Args:
        matrix: (d, k).

    Returns:
        (d, min(d, k)) with orthonormal columns.
    """
    dim, rank = matrix.shape
    tolerance = 4 * rank * jnp.finfo(matrix.dtype).eps
    columns: list[Array] = []
    for j in range(min(dim, rank)):
        basis = (
            jnp.stack(columns, axis=1) if columns else jnp.zeros((dim, 0), matrix.dtype)
        )
        scale = nonzero(
            jnp.max(jnp.abs(matrix[:, j]))
        )  # squares neither overflow nor vanish
        column = matrix[:, j] / scale
        residual = _project_out(_project_out(column, basis), basis)
        furthest = jnp.argmin(jnp.sum(basis**2, axis=1))
        substitute = _project_out(
            (jnp.arange(dim) == furthest).astype(matrix.dtype), basis
        )
        is_independent = ~(
            norm(residual) <= tolerance * norm(column)
        )  # true for nan, which is passed on
        once = jnp.where(is_independent, residual / nonzero(norm(residual)), substitute)
        twice = _project_out(once, basis)
        columns.append(twice / norm(twice))
    return jnp.stack(columns, axis=1)


def _project_out(x: Array, basis: Array) -> Array:
    return x - basis @ (x @ basis)


def norm(x: Array) -> Array:
    """Return the Euclidean norm of all entries."""
    return jnp.sqrt(jnp.sum(x**2))


def nonzero(x: Array) -> Array:
    """Replace zeros by 1, for divisions."""
    return jnp.where(x == 0, 1, x)


def jacobi_eigh(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues, ascending, and eigenvectors of a symmetric matrix, by Jacobi's method on disjoint pairs.

    A sweep rotates every pair of coordinates once, in the rounds of a tournament (Brent and Luk 1985).

    Args:
        matrix: (n, n), symmetric.

    Returns:
        (n,) and (n, n), as `jnp.linalg.eigh` returns them, up to the signs of the vectors.
    """
    n = matrix.shape[0]
    pairs = jnp.asarray(
        _tournament(n + n % 2)
    )  # (rounds, pairs, 2); an odd n is padded by a coordinate of zeros
    padding = (0, n % 2)
    identity = jnp.eye(n + n % 2, dtype=matrix.dtype)

    def rotate(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        a, vectors = carry
        p, q = pairs[index % pairs.shape[0]].T
        # The smaller angle t that makes entry (p, q) zero: tan(2 t) = 2 a_pq / (a_qq - a_pp).
        difference, twice = a[q, q] - a[p, p], 2 * a[p, q]
        length = jnp.abs(difference) + jnp.sqrt(difference**2 + twice**2)
        tan = jnp.where(difference < 0, -twice, twice) / jnp.where(length > 0, length, 1)
        cos = 1 / jnp.sqrt(1 + tan**2)
        sin = tan * cos
        rotation = (
            identity.at[p, p]
            .set(cos)
            .at[q, q]
            .set(cos)
            .at[p, q]
            .set(sin)
            .at[q, p]
            .set(-sin)
        )
        return rotation.T @ a @ rotation, vectors @ rotation

    scale = nonzero(jnp.max(jnp.abs(matrix)))
    start = jnp.pad(matrix / scale, (padding, padding)), identity
    a, vectors = jax.lax.fori_loop(0, SWEEPS * pairs.shape[0], rotate, start)
    values = jnp.diagonal(a)[:n]
    order = jnp.argsort(values)
    return scale * values[order], vectors[:n, :n][:, order]


def _tournament(players: int) -> np.ndarray:
    """Return a round-robin tournament: (players - 1, players / 2, 2) int32 pairs by round, every pair once."""
    others = np.arange(1, players)
    rounds = []
    for shift in range(players - 1):
        circle = np.concatenate([[0], np.roll(others, shift)])
        rounds.append(
            np.stack([circle[: players // 2], circle[: players // 2 - 1 : -1]], axis=1)
        )
    return np.asarray(rounds, np.int32)
