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
            w = stale + 0.4 / samples * (
                (batch.y - batch.features @ stale) @ batch.features
            )
        return sampler.descent(key_descent, batch, w)

    def once(key):
        key_server, key_clients = jax.random.split(key)
        messages = jax.vmap(client)(
            jax.random.split(key_clients, CLIENTS), jnp.arange(CLIENTS)
        )
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), messages)
        return sampler.mean_descent(
            key_server, b, task.representation, mean, jnp.int32(CLIENTS)
        )

    keys = jax.random.split(jax.random.key(hash_of(sampler, samples)), repeats)
    return np.asarray(jax.jit(jax.vmap(once))(keys), np.float64).reshape(repeats, -1)


def hash_of(sampler, samples):
    return samples + (
        1000
        if sampler.locate(jnp.eye(DIM)[:, :RANK], jnp.eye(DIM)[:, :RANK]) == ()
        else 0
    )


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


@pytest.mark.long
def test_the_comparison_rejects_a_draw_that_is_not_projected(monkeypatch):
    full = mean_descents(samplers.full(12), 12, True)

    def not_projected(key, basis, covariance):
        values, vectors = jnp.linalg.eigh(covariance)
        root = (vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]) @ vectors.T
        return jax.random.normal(key, (basis.shape[0], covariance.shape[0])) @ root

    monkeypatch.setattr(samplers, "draw_perpendicular", not_projected)
    wrong = mean_descents(samplers.subspace(12), 12, True)
    assert np.abs(compare(wrong, full)).max() > 5


def distances(sampling, num_seeds=300, rounds=10):
    task = srp.data.linear_task(
        jax.random.key(2), num_clients=6, dim=12, rank=2, noise_std=0.5
    )
    algorithm = srp.algorithms.LinearFedRep(
        task, step_size=0.2, samples_per_round=10, sampling=sampling
    )
    keys = jax.random.split(jax.random.key(3 if sampling == "full" else 4), num_seeds)
    histories = srp.simulate_seeds(
        algorithm,
        task,
        num_rounds=rounds,
        keys=keys,
        evaluations=(),
        progress=False,
        devices=1,
    )
    return np.array([history.metrics["distance"][-1] for history in histories])


@pytest.mark.long
def test_distance_after_ten_rounds_has_the_law_of_full_sampling():
    full, short = distances("full")[:, None], distances("subspace")[:, None]
    assert np.abs(compare(short, full)).max() < 5
    assert full.std() > 0.01


@pytest.mark.parametrize("angle", [1.0, 1e-3, 1e-7, 0.0])
@pytest.mark.parametrize("dim", [3, 4, 50])
def test_basis_of_the_rest_is_orthonormal_however_close_the_subspaces_are(dim, angle):
    truth = jnp.eye(dim)[:, :2]
    b = srp.linear.orthonormalize(
        truth + angle * jax.random.normal(jax.random.key(0), (dim, 2))
    )
    p = samplers._outside_basis(b, truth)
    basis = np.concatenate([b, p], axis=1)
    assert p.shape == (dim, min(2, dim - 2))
    assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-6
    assert np.abs(truth - basis @ (basis.T @ truth)).max() < 1e-6
