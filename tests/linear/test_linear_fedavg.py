"""FedAvg on linear tasks against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference

import fedjax_srp as srp
from fedjax_srp.linear import draw_batch

ROOT = jax.random.key(4)


@pytest.fixture
def double():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def a_task(seed=0, num_clients=40, dim=100, rank=5):
    return srp.data.linear_task(
        jax.random.key(seed), num_clients, dim, rank, heads="gaussian"
    )


CONTEXT = srp.RoundContext(jnp.int32(0), jnp.int32(0), jnp.int32(6), 6, jnp.int32(1))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("local_steps", [1, 3])
def test_a_round_agrees_with_numpy(local_steps):
    task = a_task(num_clients=6, dim=10, rank=3)
    algorithm = srp.algorithms.LinearFedAvg(task, step_size=0.3, local_steps=local_steps)
    model = algorithm.init(ROOT, task)
    model = model._replace(head=model.head + 0.1)
    b, w = (np.asarray(leaf) for leaf in model)
    truth, heads = np.asarray(task.representation), np.asarray(task.heads)
    messages = [
        algorithm.client(ROOT, model, (), task.train_client(i), CONTEXT).message
        for i in jnp.arange(6)
    ]
    expected = reference.fedavg_round(b, w, truth, heads, 0.3, local_steps)
    for parts, wanted in zip(zip(*messages, strict=True), expected, strict=True):
        np.testing.assert_allclose(np.mean(parts, axis=0), wanted, rtol=0, atol=1e-12)
    metrics = algorithm.metrics(model, task)
    distance = reference.distance(b, truth)
    assert float(metrics["distance"]) == pytest.approx(distance, abs=1e-10)
    error = b @ w - truth @ heads.mean(0)
    norm = np.hypot(np.linalg.norm(b.T @ error), np.linalg.norm(np.outer(error, w)))
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-10)


@pytest.mark.usefixtures("double")
def test_two_steps_of_fine_tuning_and_the_error_of_the_global_model_agree_with_numpy():
    """(1 / 2n) sum_j (<B w, x_j> - y_j)^2 descended in B and w together; ||B w - theta*||^2."""
    task, samples, rate = a_task(num_clients=3, dim=8, rank=2), 7, 0.06
    options = {"fine_tune_samples": samples, "fine_tune_steps": 2}
    algorithm = srp.algorithms.LinearFedAvg(
        task, step_size=0.4, fine_tune_step_size=rate, **options
    )
    model = algorithm.init(ROOT, task)._replace(head=jnp.array([0.5, -0.8]))
    b, w = (np.asarray(part) for part in model)
    client = task.train_client(jnp.int32(1))
    theta = np.asarray(task.representation) @ np.asarray(task.heads)[1]
    predict = algorithm.evaluations["global"](ROOT, model, (), client)
    error, count = task.score(predict, task.test_client(jnp.int32(1)))
    population = np.sum((b @ w - theta) ** 2)
    assert float(error) / float(count) == pytest.approx(population, rel=1e-10)
    x, y = (np.asarray(part) for part in draw_batch(ROOT, client, samples))
    for _ in range(2):
        slope = x.T @ (x @ b @ w - y) / samples
        b, w = b - rate * np.outer(slope, w), w - rate * b.T @ slope
    tuned = algorithm.evaluations["fine_tune"](ROOT, model, (), client)(jnp.eye(8))
    np.testing.assert_allclose(tuned, b @ w, rtol=0, atol=1e-12)
