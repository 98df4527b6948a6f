"""Principal-angle distance and orthonormal bases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference

from fedjax_srp.linear import orthonormalize, principal_angle_distance


def pair(seed, dim=12, rank=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(dim, rank)), rng.normal(size=(dim, rank))


@pytest.mark.parametrize("seed", range(5))
def test_distance_agrees_with_projectors(seed):
    b1, b2 = pair(seed)
    with jax.enable_x64(True):
        measured = principal_angle_distance(jnp.asarray(b1), jnp.asarray(b2))
        assert float(measured) == pytest.approx(reference.distance(b1, b2), abs=1e-12)
        assert float(measured) == pytest.approx(
            float(principal_angle_distance(jnp.asarray(b2), jnp.asarray(b1))), abs=1e-12
        )


def test_distance_does_not_depend_on_the_basis():
    b1, b2 = pair(0)
    change = np.random.default_rng(9).normal(size=(3, 3))
    with jax.enable_x64(True):
        plain = principal_angle_distance(jnp.asarray(b1), jnp.asarray(b2))
        changed = principal_angle_distance(jnp.asarray(b1 @ change), jnp.asarray(-b2))
        assert float(changed) == pytest.approx(float(plain), rel=1e-10)


@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-5, 1e-6])
def test_small_distances_keep_their_digits(angle):
    """In float32 the cosine of these angles is 1 to rounding from 1e-4 on."""
    b1 = jnp.eye(6)[:, :2]
    b2 = b1.at[:, 1].set(jnp.cos(angle) * jnp.eye(6)[1] + jnp.sin(angle) * jnp.eye(6)[4])
    assert float(principal_angle_distance(b1, b2)) == pytest.approx(np.sin(angle), rel=1e-5)


def test_extremes():
    eye = jnp.eye(6)
    assert float(principal_angle_distance(eye[:, :2], eye[:, 2:4])) == pytest.approx(1)
    assert float(principal_angle_distance(eye[:, :2], eye[:, :2])) == 0
    half = principal_angle_distance(eye[:, :2], eye[:, 1:3])  # one direction shared, one perpendicular
    assert float(half) == pytest.approx(1)


def test_orthonormalize_is_unique():
    matrix = jnp.asarray(pair(3)[0], jnp.float32)
    q = orthonormalize(matrix)
    assert np.allclose(q.T @ q, np.eye(3), atol=1e-6)
    assert (np.diagonal(q.T @ matrix) > 0).all()
    assert np.allclose(orthonormalize(q), q, atol=1e-6)  # a fixed point: nothing flips from round to round


def test_orthonormalize_survives_dependent_columns():
    column = jnp.ones((5, 1)) / jnp.sqrt(5)
    q = orthonormalize(jnp.concatenate([column, column, 0 * column], axis=1))
    assert np.allclose(q.T @ q, np.eye(3), atol=1e-6)
