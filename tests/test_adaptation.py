"""Adaptation of new clients: scores equal those of fine-tuning evaluations, and of NumPy's least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_srp as srp
from fedjax_srp.base import Examples
from fedjax_srp.driver.adapt import params_of, some

KEY = jax.random.key(3)
MODEL = srp.models.MLP((8, 8), num_classes=10, hidden=(6,))
SGD = srp.SGD(0.1, momentum=0.5)
LINEAR = srp.algorithms.LinearFedRep(
    srp.data.linear_task(jax.random.key(0), num_clients=2, dim=5, rank=2),
    step_size=0.1, samples_per_round=4, sampling="full", start="random",
)  # fmt: skip


@srp.part
class Own(srp.FederatedAlgorithm):
    """An algorithm with a model, and none of the bases of the package."""

    model: srp.models.SplitModel


OWN = Own(MODEL)


@pytest.fixture(scope="module")
def data():
    """Return a federation whose clients have different numbers of test examples."""
    return srp.data.load(
        "digits", num_clients=5, partition="dirichlet", alpha=0.5, max_examples=24
    )


@pytest.fixture(scope="module")
def params():
    return jax.jit(MODEL.init)(jax.random.key(1))


@pytest.mark.short("head-*")
@pytest.mark.parametrize(
    ("part", "evaluation"), [("head", "fine_tune"), ("all", "fine_tune_all")]
)
def test_epochs_are_those_of_fine_tuning(data, params, part, evaluation):
    state = {"params": params._asdict()}  # as loaded from a folder of models
    options = {"epochs": 3, "optimizer": SGD, "devices": 1}
    found = srp.adapt(MODEL, data, state, key=KEY, part=part, **options)
    assert found.scores.shape == (1, 4, 5)
    assert found.num_samples.tolist() == [-1]
    for epochs in (0, 3):
        algorithm = srp.algorithms.FedAvg(
            MODEL, srp.Training(SGD), fine_tune_epochs=epochs
        )
        expected = srp.evaluate(
            algorithm, data, state, key=KEY, evaluations=evaluation, devices=1
        )[evaluation]
        np.testing.assert_allclose(found.scores[0, epochs], expected, rtol=1e-6)
    assert found.mean[0, 3] > found.mean[0, 0]
    counts = np.asarray(jax.vmap(lambda i: data.test_client(i).count)(jnp.arange(5)))
    assert len(set(counts.tolist())) == 5
    np.testing.assert_allclose(found.mean[0], found.scores[0] @ counts / counts.sum())


def test_a_model_without_a_head_keeps_its_score(data, params):
    state = srp.models.SplitParams({**params.representation, **params.head}, {})
    found = srp.adapt(
        MODEL.recut(None), data, state, key=KEY, epochs=2, optimizer=SGD, devices=1
    )
    first = srp.adapt(MODEL, data, params, key=KEY, epochs=1, devices=1).scores[:, :1]
    np.testing.assert_array_equal(found.scores, np.repeat(first, 3, axis=1))


@pytest.mark.parametrize("name", ["fedrep", "fedavg", "fine_tune_optimizer"])
def test_a_method_gives_its_fine_tuning_optimizer_and_batches(data, params, name):
    training = srp.Training(srp.SGD(0.2), batch_size=4)
    algorithm = {
        "fedrep": lambda: srp.algorithms.FedRep(MODEL, training, head_optimizer=SGD),
        "fedavg": lambda: srp.algorithms.FedAvg(MODEL, srp.Training(SGD, batch_size=4)),
        "fine_tune_optimizer": lambda: srp.algorithms.FedAvg(
            MODEL, training, fine_tune_optimizer=SGD
        ),
    }[name]()
    options = {"key": KEY, "epochs": 1, "devices": 1}
    expected = srp.adapt(
        MODEL, data, params, optimizer=SGD, batch_size=4, **options
    ).scores
    method = srp.Method("mine", algorithm, srp.participation.Full())
    np.testing.assert_array_equal(
        srp.adapt(method, data, params, **options).scores, expected
    )
    other = {"optimizer": srp.SGD(0.01), "batch_size": 10}
    given = srp.adapt(algorithm, data, params, **other, **options).scores
    np.testing.assert_array_equal(given, srp.adapt(MODEL, data, params, **options).scores)
    assert (given != expected).any()


def test_the_state_of_the_optimizer_is_carried_from_epoch_to_epoch(data, params):
    """The loss of the trained model shows every bit of it."""
    data, optimizer = (
        srp.data.training_loss(data, srp.models.cross_entropy),
        optax.adam(0.01),
    )  # a count, two moments
    algorithm = srp.algorithms.FedAvg(
        MODEL, srp.Training(SGD), fine_tune_epochs=3, fine_tune_optimizer=optimizer
    )
    with jax.numpy_dtype_promotion("standard"):  # of optax's adam
        found = srp.adapt(
            MODEL, data, params, key=KEY, epochs=3, optimizer=optimizer, devices=1
        )
        expected = srp.evaluate(
            algorithm,
            data,
            {"params": params},
            key=KEY,
            evaluations="fine_tune",
            devices=1,
        )
    np.testing.assert_allclose(found.scores[0, 3], expected["fine_tune"], rtol=2e-6)
    assert np.all(found.scores[0, 3] != found.scores[0, 2])


@pytest.mark.long
def test_fewer_samples_on_several_devices(data, params):
    counts, options = (2, 8, 100), {"epochs": 2, "optimizer": SGD}
    one = srp.adapt(
        MODEL, data, params, key=KEY, num_samples=counts, devices=1, **options
    )
    several = srp.adapt(
        MODEL,
        data,
        params,
        key=KEY,
        num_samples=counts,
        devices=2,
        chunk_size=1,
        **options,
    )
    np.testing.assert_allclose(several.scores, one.scores, atol=1e-6)
    everything = srp.adapt(MODEL, data, params, key=KEY, devices=1, **options)
    np.testing.assert_array_equal(one.scores[2], everything.scores[0])
    np.testing.assert_array_equal(
        one.scores[:, 0], np.broadcast_to(one.scores[0, 0], (3, 5))
    )  # nobody has trained
    assert one.mean[0, 2] < one.mean[2, 2]


def test_samples_are_nested_and_never_padding():
    examples = Examples(jnp.arange(9.0), jnp.arange(9, dtype=jnp.int32), jnp.int32(6))
    drawn = {n: some(KEY, examples, jnp.int32(n)) for n in (1, 3, 6, 50)}
    taken = {n: np.asarray(e.y)[: int(e.count)].tolist() for n, e in drawn.items()}
    assert [len(rows) for rows in taken.values()] == [1, 3, 6, 6]
    assert set(taken[1]) < set(taken[3]) < set(taken[6]) == set(range(6))
    assert taken[3] == sorted(taken[3])
    assert taken[50] == list(range(6))
    many = jax.vmap(lambda key: some(key, examples, jnp.int32(2)).y[:2])(
        jax.random.split(KEY, 600)
    )
    share = np.bincount(np.asarray(many).ravel(), minlength=9) / 600
    np.testing.assert_allclose(
        share[:6], 1 / 3, atol=4 * np.sqrt(2 / 9 / 600)
    )  # four standard errors
    assert not share[6:].any()


def test_samples_are_drawn_by_the_key(data, params):
    options = {
        "num_samples": (1,),
        "epochs": 1,
        "optimizer": srp.SGD(1.0),
        "batch_size": 99,
        "devices": 1,
    }
    one, other = (
        srp.adapt(MODEL, data, params, key=jax.random.key(seed), **options)
        for seed in (0, 1)
    )
    assert (
        one.scores[0, 1] != other.scores[0, 1]
    ).any()  # one step on one example, whichever it is


def test_linear_heads_are_least_squares():
    task = srp.data.linear_task(
        jax.random.key(0), num_clients=6, dim=5, rank=2, noise_std=0.3
    )
    algorithm = srp.algorithms.LinearFedRep(
        task,
        step_size=0.1,
        samples_per_round=4,
        sampling="full",
        start="random",
        evaluation_samples=7,
    )
    state = jax.jit(algorithm.init)(KEY, task)
    found = srp.adapt(task, task, state, key=KEY, num_samples=(1, 3, 7), devices=1)
    assert found.scores.shape == (3, 1, 6)
    expected = srp.evaluate(algorithm, task, state, key=KEY, devices=1)["fit_head"]
    np.testing.assert_allclose(found.scores[2, 0], expected, rtol=1e-5)
    assert (found.scores[2] < found.scores[0]).mean() > 0.5
    # In NumPy: 3 samples of client 0 determine its head; the same draws as the evaluation's.
    from fedjax_srp.base import named_key
    from fedjax_srp.linear.sampling import draw_batch

    key = jax.random.fold_in(jax.random.fold_in(named_key(KEY, "evaluation"), 0), 0)
    x, y = (
        np.asarray(part, np.float64)[:3]
        for part in draw_batch(key, task.train_client(jnp.int32(0)), 7)
    )
    b = np.asarray(state.representation, np.float64)
    theta = b @ np.linalg.lstsq(x @ b, y, rcond=None)[0]
    truth = np.asarray(task.representation, np.float64) @ np.asarray(
        task.heads[0], np.float64
    )
    np.testing.assert_allclose(
        found.scores[1, 0, 0], np.sum((theta - truth) ** 2), rtol=1e-4
    )


def test_whole_models_are_found_in_every_state(params):
    for state in (
        params,
        {"params": params},
        {"params": params._asdict()},
        params._asdict(),
    ):
        assert jax.tree.all(jax.tree.map(np.array_equal, params_of(state), params))
