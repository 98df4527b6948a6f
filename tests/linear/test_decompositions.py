"""Decompositions for accelerators against NumPy's, also for ill-conditioned matrices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.linear import orthonormalize, principal_angle_distance
from fedjax_srp.linear.decompositions import MAX_COLUMNS, gram_schmidt, jacobi_eigh
from fedjax_srp.xla.backend import traced_for

SHAPES = [(1, 1), (6, 1), (7, 3), (5, 5), (40, 16), (3, 5)]


def conditioned(seed, dim, rank, condition):
    """Return a matrix whose singular values fall from 1 to 1 / condition, in float64."""
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.normal(size=(dim, min(dim, rank))))
    v, _ = np.linalg.qr(rng.normal(size=(rank, min(dim, rank))))
    return u * np.geomspace(1, 1 / condition, min(dim, rank)) @ v.T


def positive_qr(matrix):
    q, r = np.linalg.qr(matrix)
    return q * np.where(np.diagonal(r) < 0, -1, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("condition", [10, 1e8])
def test_gram_schmidt_is_the_unique_q(shape, condition):
    a = conditioned(0, *shape, condition)
    with jax.enable_x64(True):
        q = np.asarray(jax.jit(gram_schmidt)(jnp.asarray(a)))
    np.testing.assert_allclose(q.T @ q, np.eye(min(shape)), atol=1e-14)
    np.testing.assert_allclose(q, positive_qr(a), atol=1e-14 * condition * 10)


@pytest.mark.parametrize("condition", [10, 1e3, 1e6, 1e12])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_columns_are_orthonormal_in_float32_for_any_condition(condition, scale):
    a = (scale * conditioned(1, 30, 6, condition)).astype(np.float32)
    q = np.asarray(gram_schmidt(jnp.asarray(a)), np.float64)
    np.testing.assert_allclose(q.T @ q, np.eye(6), atol=1e-6)
    exact = a.astype(np.float64) / scale
    if condition <= 1e6:  # the span contains every column up to rounding
        np.testing.assert_allclose(q @ (q.T @ exact), exact, atol=1e-6)


@pytest.mark.parametrize("columns", [[0, 0, 0], [1, 1, 2], [1, 0, 1], [2, 1, 3]])
def test_dependent_columns_are_replaced(columns):
    """Columns are those of the identity, counted from 1; 0 is a column of zeros."""
    a = jnp.concatenate([jnp.zeros((4, 1)), jnp.eye(4)], axis=1)[:, jnp.array(columns)]
    q = gram_schmidt(a)
    np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(q @ (q.T @ a), a, atol=1e-6)


def test_nan_is_kept_and_nearly_dependent_columns_count():
    assert jnp.isnan(gram_schmidt(jnp.full((4, 2), jnp.nan))).all()
    assert jnp.isnan(gram_schmidt(jnp.eye(4)[:, :2].at[0, 0].set(jnp.inf))).all()
    eye = jnp.eye(4)
    np.testing.assert_allclose(
        gram_schmidt(jnp.stack([eye[0], eye[0] + 5e-6 * eye[2]], axis=1))[:, 1],
        eye[2],
        atol=0.1,
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, MAX_COLUMNS])
@pytest.mark.parametrize("kind", ["random", "gram", "clustered", "zero"])
def test_eigenvalues_and_vectors(n, kind):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, n))
    a = {
        "random": a + a.T,
        "gram": conditioned(n, n, n, 1e10) @ conditioned(n, n, n, 1e10).T,
        "clustered": np.eye(n) + 1e-9 * (a + a.T),
        "zero": 0 * a,
    }[kind]
    with jax.enable_x64(True):
        values, vectors = (
            np.asarray(part) for part in jax.jit(jacobi_eigh)(jnp.asarray(a))
        )
    np.testing.assert_allclose(
        values, np.linalg.eigvalsh(a), atol=1e-14 * max(np.abs(a).max(), 1) * n
    )
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=1e-13)
    np.testing.assert_allclose(
        vectors * values @ vectors.T, a, atol=1e-13 * max(np.abs(a).max(), 1)
    )


def test_the_largest_eigenvalue_is_exact_to_rounding_in_float32():
    for seed in range(20):
        b = np.random.default_rng(seed).normal(size=(7, 5)).astype(
            np.float32
        ) * 10.0 ** -np.arange(5, dtype=np.float32)
        gram = b.T @ b
        largest = float(jacobi_eigh(jnp.asarray(gram))[0][-1])
        assert largest == pytest.approx(
            np.linalg.eigvalsh(gram.astype(np.float64))[-1], rel=1e-6
        )


def test_accelerators_use_them_and_they_agree_with_lapack():
    rng = np.random.default_rng(0)
    b1, b2 = (jnp.asarray(rng.normal(size=(12, 3)), jnp.float32) for _ in range(2))
    task = srp.data.linear_task(
        jax.random.key(0), num_clients=20, dim=12, rank=2, noise_std=0.1
    )
    algorithm = srp.algorithms.LinearFedRep(
        task, step_size=0.1, samples_per_round=8, start="random"
    )

    def values():
        server = algorithm.init(jax.random.key(0), task)
        return orthonormalize(b1), principal_angle_distance(b1, b2), server.representation

    with traced_for("gpu"):
        traced, on_a_gpu = str(jax.make_jaxpr(lambda: values())()), values()
    calls = r"= (geqrf|householder_product|qr|eigh|cholesky|triangular_solve)\b"
    assert re.search(calls, str(jax.make_jaxpr(values)()))
    assert not re.search(calls, traced)
    for ours, lapack in zip(on_a_gpu, values(), strict=True):
        np.testing.assert_allclose(ours, lapack, atol=1e-6)
