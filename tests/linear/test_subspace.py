"""Principal-angle distance and orthonormal bases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference

from fedjax_srp.linear import orthonormalize, principal_angle_distance


def test_distance_agrees_with_projectors():
    bases = np.random.default_rng(0).normal(size=(2, 12, 3))  # not orthonormal
    with jax.enable_x64(True):
        for one, other in (bases, bases[::-1]):
            measured = principal_angle_distance(jnp.asarray(one), jnp.asarray(other))
            expected = reference.distance(one, other)
            assert float(measured) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-5, 1e-6])
def test_small_distances_keep_their_digits(angle):
    """In float32 the cosine of these angles is 1 to rounding from 1e-4 on."""
    b1 = jnp.eye(6)[:, :2]
    b2 = b1.at[:, 1].set(jnp.cos(angle) * jnp.eye(6)[1] + jnp.sin(angle) * jnp.eye(6)[4])
    assert float(principal_angle_distance(b1, b2)) == pytest.approx(
        np.sin(angle), rel=1e-5
    )


def test_orthonormalize_is_unique():
    matrix = jnp.asarray(np.random.default_rng(3).normal(size=(12, 3)), jnp.float32)
    q = orthonormalize(matrix)
    assert (np.diagonal(q.T @ matrix) > 0).all()
    assert np.allclose(orthonormalize(q), q, atol=1e-6)  # nothing flips
    column = jnp.ones((5, 1)) / jnp.sqrt(5)
    dependent = orthonormalize(jnp.concatenate([column, column, 0 * column], axis=1))
    for basis in (q, dependent):
        assert np.allclose(basis.T @ basis, np.eye(3), atol=1e-6)
