"""Subspaces of R^d, given by matrices whose columns span them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array
from fedjax_srp.xla.loops import sequential

# otherwise accelerators round products to three digits
exact_matmul = jax.default_matmul_precision("highest")


@exact_matmul
def eigh(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues, ascending, and eigenvectors of a symmetric matrix (n, n).

    Under vmap it runs one matrix at a time: the batched decomposition of jaxlib 0.10 waits for the
    thread pool in which it runs; if all CPU devices wait at once (seeds vmapped over several
    devices), the program deadlocks.
    """
    return sequential(jnp.linalg.eigh)(matrix)


@exact_matmul
def orthonormalize(matrix: Array) -> Array:
    """Return the Q factor of the QR decomposition whose R has no negative diagonal entry.

    For independent columns Q is unique, and continuous in `matrix`.

    Args:
        matrix: (d, k).

    Returns:
        (d, min(d, k)) with orthonormal columns, even if those of `matrix` are dependent.
    """
    q, r = jnp.linalg.qr(matrix)
    sign = jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(q.dtype)
    return q * sign[None, :]


@exact_matmul
def principal_angle_distance(b1: Array, b2: Array) -> Array:
    """Return the sine of the largest principal angle, dist = ||(I - Q1 Q1^T) Q2||_2.

    The distance of SRPFL, section 4. It is not computed from the cosine, which loses every distance
    below the square root of the machine precision.

    Args:
        b1: (d, k), of full column rank, not necessarily orthonormal.
        b2: (d, k), likewise.

    Returns:
        () between 0 (equal column spaces) and 1 (some direction of one is perpendicular to the
        other).

    Example:
        >>> import jax.numpy as jnp
        >>> import fedjax_srp as srp
        >>> plane = jnp.eye(3)[:, :2]
        >>> tilted = plane.at[2, 0].set(1e-6)
        >>> f"{srp.linear.principal_angle_distance(plane, tilted):.1e}"
        '1.0e-06'
    """
    q1 = orthonormalize(b1)
    q2 = orthonormalize(b2)
    outside = q2 - q1 @ (q1.T @ q2)
    eigenvalues, _ = eigh(outside.T @ outside)
    largest = eigenvalues[-1]  # exact up to a relative eps
    return jnp.clip(jnp.sqrt(jnp.maximum(largest, 0)), 0, 1)
