"""Samples of a round of Algorithm 2: in full, or only the statistics on which the round depends.

A round uses a new batch X (m, d), y only through F = X B and y (any head is computed from these),
and then through X^T r with r = y - F w. For x ~ N(0, I_d) and B with orthonormal columns, B* w* = B
a + P b, where [B, P] is an orthonormal basis of span[B, B*], and

* y = F a + tau e with (F, e) a standard normal (m, k+1) matrix and tau^2 = ||b||^2 + sigma^2: for
  the head, the part of x along b is noise;
* given (F, e), and so r, X^T r is F^T r along B, v rho e^T r + ||r|| (g - (1 - sqrt(1 - rho^2)) v
  v^T g) along P, with v = b / ||b||, rho = ||b|| / tau and g ~ N(0, I), and ||r|| N(0, 1) in every
  direction perpendicular to both.

Only the last part depends on d, and one draw serves the mean of (X_i^T r_i) w_i^T over clients: its
rows there are independent N(0, S) with S = sum_i p_i^2 ||r_i||^2 w_i w_i^T. All else depends on (F,
e) only through its Gram matrix, so a triangular root of a Wishart matrix can replace (F, e).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Key, named_key
from fedjax_srp.linear.sampling import LinearClient, draw_batch, draw_design, nonzero
from fedjax_srp.linear.subspace import eigh, exact_matmul, orthonormalize


class Sampler(NamedTuple):
    """Functions with which Algorithm 2 draws samples and computes gradients.

    Attributes:
        locate: `(B, B*) -> position`, the position of B* relative to B, which `draw` uses.
        draw: `(key, B, position, client) -> batch`, with the fields `features`, F (rows, k), and
            `y` (rows,).
        descent: `(key, batch, w) -> message`, a linear image of -grad_B f = (1/m) X^T r w^T with r
            = y - F w.
        mean_descent: `(key, B, B*, mean message, cohort_size) -> (d, k)`, the mean of -grad_B f
            over the cohort.
    """

    locate: Callable[[Array, Array], Any]
    draw: Callable[[Key, Array, Any, LinearClient], Any]
    descent: Callable[[Key, Any, Array], Any]
    mean_descent: Callable[[Key, Array, Array, Any, Array], Array]


class FullBatch(NamedTuple):
    """A full batch."""

    x: Array  # (m, d)
    features: Array  # (m, k)
    y: Array  # (m,)


def full(samples: int, fixed: bool = False) -> Sampler:
    """Draw X (m, d) and y: new samples in every call, or the client's own if `fixed`."""

    @exact_matmul
    def draw(key: Key, b: Array, position: tuple, client: LinearClient) -> FullBatch:
        x, y = draw_batch(client.key if fixed else key, client, samples)
        return FullBatch(x, x @ b, y)

    @exact_matmul
    def descent(key: Key, batch: FullBatch, w: Array) -> Array:
        residual = batch.y - batch.features @ w
        return (residual @ batch.x)[:, None] * (w / samples)[None, :]

    def locate(b: Array, truth: Array) -> tuple[()]:
        return ()

    def mean_descent(
        key: Key, b: Array, truth: Array, mean: Array, cohort_size: Array
    ) -> Array:
        return mean

    return Sampler(locate, draw, descent, mean_descent)


class Position(NamedTuple):
    """B* in an orthonormal basis [B, P] of span[B, B*]."""

    inside: Array  # (k, k) B^T B*
    outside: Array  # (p, k) P^T B*, p = min(k, d - k)


class SubspaceBatch(NamedTuple):
    """Statistics of a batch on which a round depends, up to a rotation of the samples."""

    features: Array  # (rows, k) F
    y: Array  # (rows,)
    noise: Array  # (rows,) e, of unit variance
    direction: Array  # (p,) v
    correlation: Array  # () rho


class SubspaceMessage(NamedTuple):
    """A client's (1/m) X^T r w^T within span[B, B*], and its covariance perpendicular to it."""

    inside: Array  # (k, k) along B
    outside: Array  # (p, k) along P
    spread: Array  # (k, k) ||r||^2 w w^T / m^2


def subspace(samples: int) -> Sampler:
    """Draw a round's mean with its exact distribution, and little else.

    It takes O(k^2) numbers per client and one (d, k) matrix. Messages differ from a client's real
    upload, and the mean has equal weights.
    """

    @exact_matmul
    def locate(b: Array, truth: Array) -> Position:
        return Position(b.T @ truth, _outside_basis(b, truth).T @ truth)

    @exact_matmul
    def draw(
        key: Key, b: Array, position: Position, client: LinearClient
    ) -> SubspaceBatch:
        design = draw_design(key, samples, b.shape[1] + 1)
        features = design[:, :-1]
        noise = design[:, -1]
        outside = position.outside @ client.head
        length = jnp.linalg.norm(outside)
        tau = jnp.sqrt(length**2 + client.noise_std**2)
        y = features @ (position.inside @ client.head) + tau * noise
        direction = outside / nonzero(length)
        correlation = length / nonzero(tau)
        return SubspaceBatch(features, y, noise, direction, correlation)

    @exact_matmul
    def descent(key: Key, batch: SubspaceBatch, w: Array) -> SubspaceMessage:
        residual = batch.y - batch.features @ w
        length = jnp.linalg.norm(residual)
        v = batch.direction
        rho = batch.correlation
        g = jax.random.normal(named_key(key, "outside"), v.shape)
        shrink = 1 - jnp.sqrt(jnp.maximum(1 - rho**2, 0))
        outside = v * (rho * jnp.sum(batch.noise * residual)) + length * (
            g - shrink * jnp.sum(v * g) * v
        )
        row = (w / samples)[None, :]
        scaled = (length / samples * w)[None, :]
        return SubspaceMessage(
            inside=(residual @ batch.features)[:, None] * row,
            outside=outside[:, None] * row,
            spread=scaled.T * scaled,
        )

    @exact_matmul
    def mean_descent(
        key: Key, b: Array, truth: Array, mean: SubspaceMessage, cohort_size: Array
    ) -> Array:
        p = _outside_basis(b, truth)
        covariance = mean.spread / cohort_size.astype(b.dtype)  # S with p_i = 1/n
        perpendicular = draw_perpendicular(
            key, jnp.concatenate([b, p], axis=1), covariance
        )
        return b @ mean.inside + p @ mean.outside + perpendicular

    return Sampler(locate, draw, descent, mean_descent)


@exact_matmul
def _outside_basis(b: Array, truth: Array) -> Array:
    """Return P (d, min(k, d - k)) such that [B, P] is orthonormal and spans [B, B*].

    P starts with components outside of B even if B = B*, and is orthogonalised against B twice. (On
    a CPU one QR of (d, 2k) costs a hundred times as much as these of (d, k).)
    """
    dim, rank = b.shape
    if dim < 2 * rank:
        return orthonormalize(jnp.concatenate([b, truth], axis=1))[:, rank:]
    generic = jnp.cos(jnp.arange(dim * rank, dtype=b.dtype) ** 2).reshape(dim, rank)
    outside = truth - b @ (b.T @ truth) + jnp.finfo(b.dtype).eps * generic
    for _ in range(2):
        q = orthonormalize(outside)
        outside = q - b @ (b.T @ q)
    return orthonormalize(outside)


@exact_matmul
def draw_perpendicular(key: Key, basis: Array, covariance: Array) -> Array:
    """Draw a (d, k) matrix with rows N(0, covariance), its columns perpendicular to `basis`.

    Args:
        key: of this draw.
        basis: (d, q) orthonormal [B, P], whose directions the caller draws separately.
        covariance: (k, k), positive semi-definite and possibly singular.
    """
    values, vectors = eigh(covariance)
    root = (vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]) @ vectors.T
    normal = jax.random.normal(key, (basis.shape[0], covariance.shape[0]))
    return (normal - basis @ (basis.T @ normal)) @ root
