"""Subspace sampling has the law of full sampling, and the comparison detects a wrong sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.linear import least_squares, samplers

DIM, RANK, CLIENTS = 8, 2, 3


def mean_descents(sampler, samples, exact, noise_std=0.5, repeats=30_000):
    """Return -grad_B averaged over three clients, at one fixed B, (repeats, DIM * RANK)."""
    task = srp.data.linear_task(jax.random.key(0), CLIENTS, DIM, RANK, noise_std)
    # A B at a sizeable angle: what lies along B, along the rest of B* and perpendicular to both all matter.
    tilt = task.representation + 0.3 * jax.random.normal(jax.random.key(1), (DIM, RANK))
    b = srp.linear.orthonormalize(tilt)
    position = sampler.locate(b, task.representation)

    def client(key, client_id):
        key_draw, key_descent = jax.random.split(key)
        batch = sampler.draw(key_draw, b, position, task.train_client(client_id))
        w = least_squares(batch.features, batch.y)
        if not exact:  # one gradient step from a stale head
            stale = jnp.array([0.5, -1.0])
            error = batch.y - batch.features @ stale
            w = stale + 0.4 / samples * error @ batch.features
        return sampler.descent(key_descent, batch, w)

    def once(key):
        key_server, key_clients = jax.random.split(key)
        keys = jax.random.split(key_clients, CLIENTS)
        messages = jax.vmap(client)(keys, jnp.arange(CLIENTS))
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), messages)
        count = jnp.int32(CLIENTS)
        return sampler.mean_descent(key_server, b, task.representation, mean, count)

    seed = samples + 1000 * (position == ())  # other draws for full sampling
    keys = jax.random.split(jax.random.key(seed), repeats)
    return np.asarray(jax.jit(jax.vmap(once))(keys), np.float64).reshape(repeats, -1)


def deviations(one, two):
    """Return the differences of the means of two samples, by column, in standard errors."""
    error = np.sqrt(one.var(0) / len(one) + two.var(0) / len(two))
    return (one.mean(0) - two.mean(0)) / error


def moments(draws, centre, scale):
    """Return all entries, all products of two (for covariances), and third and fourth powers of entries."""
    z = (draws - centre) / scale
    i, j = np.triu_indices(z.shape[1])
    return np.concatenate(
        [z, z[:, i] * z[:, j], np.clip(z, -6, 6) ** 3, np.clip(z, -6, 6) ** 4], axis=1
    )


def compare(one, two):
    centre, scale = two.mean(0), two.std(0)
    return deviations(moments(one, centre, scale), moments(two, centre, scale))


CASES = [
    (12, True, 0.5),
    (12, False, 0.5),
    (4, True, 0.5),
    (3, False, 0.5),
    (12, True, 0.0),
]


@pytest.mark.short("12-True-0.0")
@pytest.mark.parametrize(("samples", "exact", "noise_std"), CASES)
def test_mean_gradient_has_the_law_of_full_sampling(samples, exact, noise_std):
    full = mean_descents(samplers.full(samples), samples, exact, noise_std)
    short = mean_descents(samplers.subspace(samples), samples, exact, noise_std)
    assert np.abs(compare(short, full)).max() < 5


@pytest.mark.parametrize("angle", [1.0, 1e-3, 1e-7, 0.0])
@pytest.mark.parametrize("dim", [3, 50])
def test_basis_of_the_rest_is_orthonormal_however_close_the_subspaces_are(dim, angle):
    truth = jnp.eye(dim)[:, :2]
    tilt = truth + angle * jax.random.normal(jax.random.key(0), (dim, 2))
    b = srp.linear.orthonormalize(tilt)
    p = samplers._outside_basis(b, truth)
    basis = np.concatenate([b, p], axis=1)
    assert p.shape == (dim, min(2, dim - 2))
    assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-6
    assert np.abs(truth - basis @ (basis.T @ truth)).max() < 1e-6
