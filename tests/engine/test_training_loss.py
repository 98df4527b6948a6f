"""The training loss of a round: its definition, and no cost unless it is requested."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import small
from reference.small import (
    KEY,
    NUM_CLASSES,
    algorithm_of,
    clients_of,
    federation,
    model,
    numbers,
    scripted,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput, TrainingLoss, methods, named_key
from fedjax_srp.algorithms import local

CLIENTS = clients_of((5, 1, 4, 6), (1, 1, 1, 1))
DATA = federation(CLIENTS)
STEP, EPOCHS = 0.5, 3
COHORTS = [[0, 2, 3], [1, 3, 0], [0, 2, 1], [0, 2, 1]]
SIZES, WORK = [3, 2, 2, 2], [[1, 2, 1], [2, 1, 1], [1, 0, 1], [0, 0, 1]]
POLICY = scripted(COHORTS, size=SIZES, work=WORK)


def simulate(algorithm, participation=POLICY, num_rounds=4, **options):
    given = {"participation": participation, "evaluations": (), "record_loss": True}
    return small.simulate(algorithm, DATA, num_rounds, **given | options)


def fedavg(batch_size):
    return srp.algorithms.FedAvg(
        model(hidden=()),
        srp.Training(srp.SGD(STEP), batch_size=batch_size, epochs=EPOCHS),
    )


def softmax_regression(w, b, client):
    """Mean cross-entropy over a client's examples, and its gradients."""
    logits = client.x.astype(np.float64) @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    error = (p - np.eye(NUM_CLASSES)[client.y]) / len(client.y)
    loss = -np.log(p[np.arange(len(client.y)), client.y]).mean()
    return loss, client.x.T @ error, error.sum(0)


@pytest.fixture(scope="module")
def expected():
    """Return the losses by round and the final model, by full-batch gradient descent in NumPy."""
    start = (
        fedavg(batch_size=6)
        .init(named_key(named_key(KEY, "server"), "init"), DATA)
        .params.head["out"]
    )
    w, b = np.asarray(start["kernel"], np.float64), np.asarray(start["bias"], np.float64)
    by_round = []
    for ids, size, work in zip(COHORTS, SIZES, WORK, strict=True):
        losses, models = [], []
        for i, units in zip(ids[:size], work, strict=False):
            w_i, b_i, of_steps = w, b, []
            for _ in range(EPOCHS * units):
                loss, dw, db = softmax_regression(w_i, b_i, CLIENTS[i])
                of_steps.append(loss)
                w_i, b_i = w_i - STEP * dw, b_i - STEP * db
            losses += [np.mean(of_steps)] if units else []
            models.append((w_i, b_i))
        w, b = (np.mean(parts, 0) for parts in zip(*models, strict=True))
        by_round.append(np.mean(losses) if losses else np.nan)
    return by_round, w


def test_it_is_the_mean_over_clients_of_their_means_over_steps(expected):
    """Cohorts differ in size and clients in work; clients without work do not count, and without any it is nan."""
    history, (losses, w) = simulate(fedavg(batch_size=6)), expected
    np.testing.assert_allclose(
        history.server_state.params.head["out"]["kernel"], w, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(history.metrics["training_loss"], losses, rtol=1e-5)
    assert np.isnan(losses[-1])


@pytest.fixture(scope="module")
def in_batches():
    return simulate(fedavg(batch_size=2))


def test_the_loss_costs_nothing_unless_requested(in_batches):
    silent = simulate(fedavg(batch_size=2), record_loss=False)
    assert "training_loss" not in silent.metrics
    for a, b in zip(
        jax.tree.leaves(silent.server_state),
        jax.tree.leaves(in_batches.server_state),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.short("devices")
@pytest.mark.parametrize("change", ["devices", "one client after the other"])
def test_it_does_not_depend_on_how_a_round_is_computed(in_batches, change, monkeypatch):
    algorithm, options = fedavg(batch_size=2), {"devices": 3, "chunk_size": 1}
    if change == "one client after the other":
        monkeypatch.setattr(local, "SEQUENTIAL_BYTES", 0)
        options = {"chunk_size": 2}
    history = simulate(algorithm, **options)
    np.testing.assert_allclose(
        history.metrics["training_loss"], in_batches.metrics["training_loss"], rtol=1e-5
    )


def refusal(algorithm, data):
    return small.refusal(small.prepared, algorithm, data, record_loss=True)


@pytest.mark.short("fedavg", "fedrep", "fedbuff")
@pytest.mark.parametrize("name", sorted({*methods.algorithm_names()} - {"fedsgd"}))
def test_every_algorithm_with_local_steps_has_it(name):
    options = {"fedbuff": {"k": 2}, "fedat": {"k": 2, "tiers": 2}}.get(name, {})
    method = methods.get(name, dataset=DATA, hidden=(3,), **options)
    assert small.prepared(method, DATA, record_loss=True).settings.record_loss


def test_algorithms_without_local_steps_on_examples_have_no_training_loss():
    fedsgd = methods.get("fedsgd", dataset=DATA, hidden=(3,))
    assert "'fedsgd' reports no loss" in refusal(fedsgd, DATA)
    task = srp.data.linear_task(KEY, 4, dim=6, rank=2)
    linear = srp.algorithms.LinearFedAvg(task, step_size=0.1, local_steps=1)
    assert "algorithm 'linear_fedavg' reports no loss" in refusal(linear, task)


def test_it_is_that_of_all_trainings_of_a_client():
    context, examples = (
        srp.RoundContext(*[jnp.int32(1)] * 5, record_loss=True),
        DATA.train_client(jnp.int32(0)),
    )

    @jax.jit
    def steps(algorithm):
        server = algorithm.init(KEY, DATA)
        state, broadcast = (
            algorithm.init_client(KEY, server, examples),
            algorithm.broadcast(server, context),
        )
        return algorithm.client(KEY, broadcast, state, examples, context).loss.steps

    for name, epochs in {"apfl": 3, "ditto": 6, "fedpac": 4, "fedrep": 33}.items():
        algorithm = methods.get(
            name, dataset=DATA, hidden=(3,), batch_size=2, epochs=3
        ).algorithm
        assert steps(algorithm) == epochs * -(-len(CLIENTS[0].y) // 2), name


def test_losses_of_several_trainings_are_means_over_all_steps():
    first = TrainingLoss(jnp.float32(3), jnp.int32(1))
    second = TrainingLoss(jnp.float32(6), jnp.int32(2))
    total = local.total_loss(first, None, second)
    assert (float(total.mean), int(total.steps)) == (5.0, 3)


def examples_of(value):
    return srp.Examples(jnp.ones((2, 1)) * value, jnp.zeros(2, jnp.int32), jnp.int32(2))


def trained(w, value, context, epochs=1):
    training = srp.Training(srp.SGD(0.1), batch_size=2, epochs=epochs).in_round(context)
    return local.local_sgd(
        KEY, lambda w, _, x, y, key: w * x[:, 0], w, (), examples_of(value), training
    )


def own(**changes):
    """Return a custom algorithm that trains and returns the loss."""

    def client(key, w, state, value, context):
        found = trained(w, value, context)
        return ClientOutput(found.params, **{"loss": found.loss} | changes)

    return algorithm_of(client)


def test_a_custom_algorithm_returns_the_loss():
    history = small.simulate(own(), numbers(1.0, 2.0), record_loss=True)
    # w * value: 0 at first, then w = -0.1 * mean of the values
    np.testing.assert_allclose(
        history.metrics["training_loss"], [0, -0.15 * 1.5], rtol=1e-5
    )
    assert history.config["record_loss"]
    silent = small.simulate(
        own(loss=TrainingLoss(jnp.float32(1), jnp.int32(1))), numbers(1.0)
    )
    assert "training_loss" not in silent.metrics  # not requested


REFUSED = {
    "none": (
        own(loss=None),
        "record_loss: algorithm 'few_lines' reports no loss",
    ),
    "by step": (
        own(loss=TrainingLoss(jnp.ones(3), jnp.int32(3))),
        "(they differ in .mean)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_training_losses_are_refused(case):
    algorithm, words = REFUSED[case]
    assert words in refusal(algorithm, numbers(1.0, 2.0))
