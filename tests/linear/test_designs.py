"""Inputs of linear tasks that are not Gaussian."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference

import fedjax_srp as srp
from fedjax_srp.linear import draw_batch, principal_angle_distance

KURTOSIS = {"gaussian": 3.0, "rademacher": 1.0, "uniform": 1.8}
KEY = jax.random.key(3)


def a_task(design, num_clients=6, dim=8, rank=2, noise_std=0.3):
    return srp.data.linear_task(KEY, num_clients, dim, rank, noise_std, design=design)


def along_axes(task):
    """Return the task whose B* has axes as columns."""
    return dataclasses.replace(task, representation=jnp.eye(task.dim, task.rank))


@pytest.mark.parametrize("design", KURTOSIS)
def test_inputs_have_the_moments_of_the_design(design):
    task = a_task(design)
    client = task.train_client(jnp.int32(1))
    x, y = (np.asarray(part, np.float64) for part in draw_batch(KEY, client, 20_000))
    for power, expected in {1: 0.0, 2: 1.0, 4: KURTOSIS[design]}.items():
        values = x.ravel() ** power
        error = values.std() / np.sqrt(values.size)
        assert abs(values.mean() - expected) < 4 * error + 1e-12
    theta = np.asarray(client.representation @ client.head, np.float64)
    noise = (y - x @ theta) / 0.3
    assert abs(noise.std() - 1) < 4 / np.sqrt(2 * len(noise))
    bounds = {"gaussian": np.inf, "rademacher": 1.0, "uniform": np.sqrt(3)}
    assert np.abs(x).max() <= bounds[design] * (1 + 1e-6)
    if design == "rademacher":
        assert {*np.unique(x)} == {-1.0, 1.0}


@pytest.mark.parametrize("design", ["rademacher", "uniform"])
def test_rounds_agree_with_numpy(design):
    task = a_task(design)
    algorithm = srp.algorithms.LinearFedRep(
        task, 0.2, samples_per_round=7, sampling="fixed", start="random"
    )
    simulation = srp.Simulation(algorithm, task)
    state = simulation.init(KEY)
    b = np.asarray(state.server.representation, np.float64)
    clients = [task.train_client(jnp.int32(i)) for i in range(task.num_clients)]
    batches = [draw_batch(client.key, client, 7) for client in clients]
    batches = [[np.asarray(part, np.float64) for part in batch] for batch in batches]
    step = jax.jit(simulation.step)
    for _ in range(3):
        state, info = step(state)
        b, _ = reference.fedrep_round(b, batches, 0.2)
        expected = reference.distance(b, np.asarray(task.representation))
        assert float(info.metrics["distance"]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("design", KURTOSIS)
def test_the_moments_have_the_bias_of_the_kurtosis(design):
    """E y^2 x x^T = (|theta|^2 + sigma^2) I + 2 theta theta^T + (kappa - 3) diag(theta^2)."""
    client = a_task(design).train_client(jnp.int32(0))
    x, y = (np.asarray(part, np.float64) for part in draw_batch(KEY, client, 40_000))
    theta = np.asarray(client.representation @ client.head, np.float64)
    products = y[:, None, None] ** 2 * x[:, :, None] * x[:, None, :]
    expected = (theta @ theta + 0.09) * np.eye(len(theta)) + 2 * np.outer(theta, theta)
    expected += (KURTOSIS[design] - 3) * np.diag(theta**2)
    errors = products.std(axis=0) / np.sqrt(len(x))
    assert (np.abs(products.mean(axis=0) - expected) < 5 * errors + 1e-9).all()


@pytest.mark.parametrize("design", ["gaussian", "rademacher"])
def test_a_start_by_moments_fails_for_signs_along_axes(design):
    task = along_axes(a_task(design, num_clients=200, dim=20, noise_std=0.0))
    algorithm = srp.algorithms.LinearFedRep(
        task, 0.1, samples_per_round=100, sampling="full"
    )
    start = srp.Simulation(algorithm, task).init(KEY).server.representation
    distance = float(principal_angle_distance(start, task.representation))
    assert distance > 0.9 if design == "rademacher" else distance < 0.2


def test_an_algorithm_refuses_data_of_another_design():
    algorithm = srp.algorithms.LinearFedAvg(a_task("gaussian"), 0.1)
    with pytest.raises(ValueError, match="design='uniform'"):
        srp.Simulation(algorithm, a_task("uniform")).init(KEY)
