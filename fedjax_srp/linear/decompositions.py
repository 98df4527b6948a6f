"""Decompositions of small matrices by plain products and sums.

On an accelerator library calls replace LAPACK, which CUDA graphs cannot contain. For a few columns the loops here are
short, and as robust as LAPACK for ill-conditioned and singular matrices. (On a CPU LAPACK is faster.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array

LARGEST = 16  # columns; more make the program long
SWEEPS = 10  # of Jacobi's method, which converges quadratically: float64 and 16 columns need 7


def gram_schmidt(matrix: Array) -> Array:
    """The Q factor of a QR decomposition whose R has no negative diagonal entry, by Gram-Schmidt done twice.

    The second time makes the columns orthogonal to rounding whatever the condition of the matrix (Giraud, Langou,
    Rozloznik and van den Eshof 2005). A column counts as dependent on those before it when no more than 4 k eps of its
    length is left; the unit vector furthest from their span replaces it. A column that is not finite and those after it
    become nan.

    Args:
        matrix: (d, k).

    Returns:
        (d, min(d, k)) with orthonormal columns.
    """
    dim, rank = matrix.shape
    tolerance = 4 * rank * jnp.finfo(matrix.dtype).eps
    columns: list[Array] = []
    for j in range(min(dim, rank)):
        done = jnp.stack(columns, axis=1) if columns else jnp.zeros((dim, 0), matrix.dtype)
        scale = nonzero(jnp.max(jnp.abs(matrix[:, j])))  # squares neither overflow nor vanish
        given = matrix[:, j] / scale
        left = _without(_without(given, done), done)
        furthest = jnp.argmin(jnp.sum(done**2, axis=1))
        other = _without((jnp.arange(dim) == furthest).astype(matrix.dtype), done)
        is_new = ~(norm(left) <= tolerance * norm(given))  # true for nan, which is passed on
        once = jnp.where(is_new, left / nonzero(norm(left)), other)
        twice = _without(once, done)
        columns.append(twice / norm(twice))
    return jnp.stack(columns, axis=1)


def _without(x: Array, basis: Array) -> Array:
    return x - basis @ (x @ basis)


def norm(x: Array) -> Array:
    """||x||, of all entries."""
    return jnp.sqrt(jnp.sum(x**2))


def nonzero(x: Array) -> Array:
    """A divisor: x, or 1 where it is 0."""
    return jnp.where(x == 0, 1, x)


def jacobi_eigh(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, by Jacobi's method with disjoint pairs at once.

    A sweep rotates every pair of coordinates once, in the rounds of a tournament (Brent and Luk 1985).

    Args:
        matrix: (n, n), symmetric.

    Returns:
        (n,) and (n, n), as `jnp.linalg.eigh` has them up to the signs of the vectors.
    """
    n = matrix.shape[0]
    pairs = jnp.asarray(_tournament(n + n % 2))  # (rounds, pairs, 2); an odd one out meets a coordinate of zeros
    padding = (0, n % 2)
    identity = jnp.eye(n + n % 2, dtype=matrix.dtype)

    def rotate(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        a, vectors = carry
        p, q = pairs[index % pairs.shape[0]].T
        # The angle that makes entry (p, q) zero: tan(2 t) = 2 a_pq / (a_qq - a_pp), the smaller of its solutions.
        apart, twice = a[q, q] - a[p, p], 2 * a[p, q]
        length = jnp.abs(apart) + jnp.sqrt(apart**2 + twice**2)
        tan = jnp.where(apart < 0, -twice, twice) / jnp.where(length > 0, length, 1)
        cos = 1 / jnp.sqrt(1 + tan**2)
        sin = tan * cos
        turn = identity.at[p, p].set(cos).at[q, q].set(cos).at[p, q].set(sin).at[q, p].set(-sin)
        return turn.T @ a @ turn, vectors @ turn

    scale = nonzero(jnp.max(jnp.abs(matrix)))
    start = jnp.pad(matrix / scale, (padding, padding)), identity
    a, vectors = jax.lax.fori_loop(0, SWEEPS * pairs.shape[0], rotate, start)
    values = jnp.diagonal(a)[:n]
    order = jnp.argsort(values)
    return scale * values[order], vectors[:n, :n][:, order]


def _tournament(players: int) -> np.ndarray:
    """(players - 1, players / 2, 2) int32: rounds of a tournament of all pairs."""
    circle = np.arange(1, players)
    rounds = []
    for turn in range(players - 1):
        seats = np.concatenate([[0], np.roll(circle, turn)])
        rounds.append(np.stack([seats[: players // 2], seats[: players // 2 - 1 : -1]], axis=1))
    return np.asarray(rounds, np.int32)
