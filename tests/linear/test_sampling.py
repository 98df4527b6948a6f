"""Least squares and the random matrices of samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma

from fedjax_srp.linear import draw_design, least_squares
from fedjax_srp.linear.sampling import _chi_squared


@pytest.mark.parametrize("rank", [1, 5])
@pytest.mark.parametrize("samples", [5, 20])
def test_least_squares_of_full_rank(samples, rank):
    rng = np.random.default_rng(samples)
    features, y = rng.normal(size=(samples, rank)), rng.normal(size=samples)
    with jax.enable_x64(True):
        w = least_squares(jnp.asarray(features), jnp.asarray(y))
    assert np.allclose(w, np.linalg.lstsq(features, y)[0], rtol=0, atol=1e-10)


def deficient():
    rng = np.random.default_rng(0)
    few, y = rng.normal(size=(2, 4)), rng.normal(size=2)
    equal = rng.normal(size=(6, 2))[:, [0, 0, 0, 1]]
    yield "fewer samples than the rank", few, y
    yield "every sample twice", np.repeat(few, 2, axis=0), np.repeat(y, 2)
    yield "equal columns", equal, rng.normal(size=6)
    yield "no features at all", np.zeros((3, 4)), rng.normal(size=3)


@pytest.mark.parametrize("case", list(deficient()), ids=lambda case: case[0])
def test_least_squares_of_smallest_norm(case):
    _, features, y = case
    expected = np.linalg.lstsq(features, y)[0]
    with jax.enable_x64(True):
        w = least_squares(jnp.asarray(features), jnp.asarray(y))
    assert np.allclose(w, expected, atol=1e-6)
    single = least_squares(*(jnp.asarray(part, jnp.float32) for part in (features, y)))
    assert np.allclose(single, expected, atol=2e-2 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("dof", [2.0, 3.0, 20.0, 1000.0])
def test_chi_squared_has_its_law(dof):
    draws = jax.vmap(lambda key: _chi_squared(key, jnp.full((4,), dof)))(
        jax.random.split(jax.random.key(0), 25_000)
    )
    assert (
        stats.kstest(np.asarray(draws, float).ravel(), stats.chi2(dof).cdf).pvalue > 1e-3
    )
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 5 / np.sqrt(len(draws))


@pytest.mark.parametrize(("samples", "rows"), [(7, 7), (8, 4), (30, 4)])
def test_gram_matrix_of_a_design_is_wishart(samples, rows):
    """Every first and second moment, and the law of a determinant."""
    repeats, columns = 40_000, 4
    keys = jax.random.split(jax.random.key(1), repeats)
    design = jax.jit(jax.vmap(lambda key: draw_design(key, samples, columns)))(keys)
    assert design.shape[1:] == (rows, columns)
    gram = np.einsum("rmi,rmj->rij", design, design, dtype=np.float64)
    i, j = np.triu_indices(columns)
    eye = np.eye(columns)
    covariance = samples * (eye[i][:, i] * eye[j][:, j] + eye[i][:, j] * eye[j][:, i])
    centred = gram[:, i, j] - samples * eye[i, j]
    products = centred[:, :, None] * centred[:, None, :] - covariance
    # det of a Wishart matrix is a product of chi-squared numbers: compare the mean of its logarithm
    halves = (samples - np.arange(columns)) / 2
    log_det = np.linalg.slogdet(gram)[1] - np.sum(np.log(2) + digamma(halves))
    for errors in (centred, products, log_det):
        assert (np.abs(errors.mean(0)) < 5 * errors.std(0) / np.sqrt(repeats)).all()
