"""Adaptation of new clients: scores equal those of fine-tuning evaluations, and of NumPy's least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_srp as srp
from fedjax_srp import Examples, named_key
from fedjax_srp.driver.adapt import some

KEY = jax.random.key(3)
MODEL = srp.models.MLP((8, 8), num_classes=10, hidden=(6,))
SGD = srp.SGD(0.1, momentum=0.5)


@pytest.fixture(scope="module")
def data():
    """Return a federation whose clients have different numbers of test examples."""
    return srp.data.load(
        "digits", num_clients=5, partition="dirichlet", alpha=0.5, max_examples=24
    )


@pytest.fixture(scope="module")
def params():
    return jax.jit(MODEL.init)(jax.random.key(1))


def evaluated(algorithm, data, state, evaluation):
    run = {"key": KEY, "evaluations": evaluation, "devices": 1}
    return srp.evaluate(algorithm, data, state, **run)[evaluation]


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
        expected = evaluated(algorithm, data, state, evaluation)
        np.testing.assert_allclose(found.scores[0, epochs], expected, rtol=1e-6)
    assert found.mean[0, 3] > found.mean[0, 0]
    counts = np.asarray(data.test_counts)
    assert len({*counts}) == 5
    np.testing.assert_allclose(found.mean[0], found.scores[0] @ counts / counts.sum())


def test_a_saved_model_of_one_layer_is_adapted_as_before(data, tmp_path):
    model = srp.models.MLP((8, 8), num_classes=10, hidden=())
    history = srp.simulate(
        srp.algorithms.FedAvg(model, srp.Training(SGD)),
        data,
        num_rounds=1,
        key=KEY,
        progress=False,
    )
    loaded = srp.History.load(history.save(tmp_path / "run", models=True))
    options = {"key": KEY, "optimizer": SGD, "devices": 1}
    found, expected = (
        srp.adapt(model, data, run.server_state, **options) for run in (loaded, history)
    )
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_model_without_a_head_keeps_its_score(data, params):
    state = srp.models.SplitParams({**params.representation, **params.head}, {})
    options = {"key": KEY, "optimizer": SGD, "devices": 1}
    found = srp.adapt(MODEL.recut(None), data, state, epochs=2, **options)
    start = srp.adapt(MODEL, data, params, epochs=1, **options).scores[:, :1]
    np.testing.assert_array_equal(found.scores, np.repeat(start, 3, axis=1))


@pytest.mark.parametrize("name", ["fedrep", "fedavg", "fine_tune_optimizer"])
def test_a_method_gives_its_fine_tuning_optimizer_and_batches(data, params, name):
    training = srp.Training(srp.SGD(0.2), batch_size=4)
    algorithm = {
        "fedrep": srp.algorithms.FedRep(MODEL, training, head_optimizer=SGD),
        "fedavg": srp.algorithms.FedAvg(MODEL, srp.Training(SGD, batch_size=4)),
        "fine_tune_optimizer": srp.algorithms.FedAvg(
            MODEL, training, fine_tune_optimizer=SGD
        ),
    }[name]

    def scores(model, **given):
        options = {"key": KEY, "epochs": 1, "devices": 1} | given
        return srp.adapt(model, data, {"params": params}, **options).scores

    expected = scores(MODEL, optimizer=SGD, batch_size=4)
    method = srp.Method("mine", algorithm, srp.participation.Full())
    np.testing.assert_array_equal(scores(method), expected)
    given = scores(algorithm, optimizer=srp.SGD(0.01), batch_size=10)
    np.testing.assert_array_equal(given, scores(MODEL))
    assert (given != expected).any()


def test_the_state_of_the_optimizer_is_carried_from_epoch_to_epoch(data, params):
    """The loss of the trained model shows every bit of it."""
    data = srp.data.training_loss(data, srp.models.cross_entropy)
    optimizer = optax.adam(0.01)  # a count, two moments
    algorithm = srp.algorithms.FedAvg(
        MODEL, srp.Training(SGD), fine_tune_epochs=3, fine_tune_optimizer=optimizer
    )
    with jax.numpy_dtype_promotion("standard"):  # of optax's adam
        found = srp.adapt(
            MODEL, data, params, key=KEY, epochs=3, optimizer=optimizer, devices=1
        )
        expected = evaluated(algorithm, data, {"params": params}, "fine_tune")
    np.testing.assert_allclose(found.scores[0, 3], expected, rtol=2e-6)
    assert np.all(found.scores[0, 3] != found.scores[0, 2])


@pytest.mark.long
def test_fewer_samples_on_several_devices(data, params):
    counts = (2, 8, 100)

    def adapted(**given):
        options = {"epochs": 2, "optimizer": SGD, "devices": 1} | given
        return srp.adapt(MODEL, data, params, key=KEY, **options)

    one = adapted(num_samples=counts)
    several = adapted(num_samples=counts, devices=2, chunk_size=1)
    np.testing.assert_allclose(several.scores, one.scores, atol=1e-6)
    np.testing.assert_array_equal(one.scores[2], adapted().scores[0])
    assert (one.scores[:, 0] == one.scores[0, 0]).all()  # nobody has trained
    assert one.mean[0, 2] < one.mean[2, 2]


def test_samples_are_nested_and_never_padding():
    examples = Examples(jnp.arange(9.0), jnp.arange(9, dtype=jnp.int32), jnp.int32(6))
    drawn = {n: some(KEY, examples, jnp.int32(n)) for n in (1, 3, 6, 50)}
    taken = {n: np.asarray(e.y)[: int(e.count)].tolist() for n, e in drawn.items()}
    assert [len(rows) for rows in taken.values()] == [1, 3, 6, 6]
    assert set(taken[1]) < set(taken[3]) < set(taken[6]) == set(range(6))
    assert taken[3] == sorted(taken[3])
    keys = jax.random.split(KEY, 600)
    many = jax.vmap(lambda key: some(key, examples, jnp.int32(2)).y[:2])(keys)
    share = np.bincount(np.asarray(many).ravel(), minlength=6) / 600
    four_errors = 4 * np.sqrt(2 / 9 / 600)
    np.testing.assert_allclose(share, 1 / 3, atol=four_errors)


def test_linear_heads_are_least_squares():
    task = srp.data.linear_task(jax.random.key(0), 6, dim=5, rank=2, noise_std=0.3)
    algorithm = srp.algorithms.LinearFedRep(
        task, 0.1, 4, sampling="full", start="random", evaluation_samples=7
    )
    state = jax.jit(algorithm.init)(KEY, task)
    found = srp.adapt(task, task, state, key=KEY, num_samples=(1, 3, 7), devices=1)
    assert found.scores.shape == (3, 1, 6)
    expected = evaluated(algorithm, task, state, "fit_head")
    np.testing.assert_allclose(found.scores[2, 0], expected, rtol=1e-5)
    # In NumPy: 3 samples of client 0 determine its head; the same draws as the evaluation's.
    key = jax.random.fold_in(jax.random.fold_in(named_key(KEY, "evaluation"), 0), 0)
    x, y = map(np.asarray, srp.linear.draw_batch(key, task.train_client(jnp.int32(0)), 7))
    b = np.asarray(state.representation)
    theta = b @ np.linalg.lstsq(x[:3] @ b, y[:3], rcond=None)[0]
    truth = np.asarray(task.representation) @ np.asarray(task.heads[0])
    np.testing.assert_allclose(
        found.scores[1, 0, 0], np.sum((theta - truth) ** 2), rtol=1e-3
    )
