"""Linear regression with a known minimum, and the training loss as a score, against NumPy in double precision."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import KEY, clients_of, federation, refused, simulate

import fedjax_srp as srp

N, S, D = 4, 30, 3
CLASSES = federation(clients_of((3, 5, 4), (2, 3, 2)))
LINEAR = srp.models.LinearRegression((D,))
W = np.array([1.0, -2.0, 0.5], np.float32)


@pytest.fixture(scope="module")
def data():
    return srp.data.linear_regression(KEY, N, S, D, noise_std=0.5, condition=9.0)


def flat(data):
    x = np.asarray(data.x, np.float64).reshape(-1, D)
    return x, np.asarray(data.y, np.float64).reshape(-1)


def loss(x, y):
    return 0.5 * np.mean((y - x @ W.astype(np.float64)) ** 2)


def test_the_minimum_is_that_of_least_squares(data):
    x, y = flat(data)
    minimiser, residuals, _, singular = np.linalg.lstsq(x, y, rcond=None)
    smallest = residuals[0] / len(x) / 2
    for found, expected in (
        (data.minimiser, minimiser),
        (data.curvature, singular[[-1, 0]] ** 2 / len(x)),
        (data.gap(jnp.asarray(W)), loss(x, y) - smallest),
        (data.distance(jnp.asarray(W)), np.linalg.norm(W - minimiser)),
    ):
        assert_allclose(found, expected, rtol=1e-5)


def test_clients_are_scored_by_their_training_loss(data):
    params = srp.models.SplitParams({}, {"out": {"kernel": jnp.asarray(W)[:, None]}})
    for i in range(N):
        client = data.test_client(i)
        total, count = data.score(lambda x: LINEAR.logits(params, x), client)
        expected = loss(*(np.asarray(array[i], np.float64) for array in (data.x, data.y)))
        losses = LINEAR.loss(LINEAR.logits(params, client.x), client.y)
        assert_allclose([total / count, losses.mean()], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["fedproto", "fedpac", "fedrod", "fedas", "gpfl", "knn_per"]
)
def test_methods_that_count_classes_refuse_numbers(name):
    numbers = srp.data.training_loss(CLASSES, srp.models.half_square)  # integers
    model = srp.models.LinearRegression(numbers.example_shape)
    method = srp.methods.get(name, dataset=numbers, model=model)
    wants = f"{name} needs class labels, but"
    message = f"{wants} model 'linear_regression' takes numbers; give"
    with refused(message), jax.numpy_dtype_promotion("standard"):
        simulate(method, numbers)
    tokens = srp.data.next_tokens([[[1, 2, 3], [4, 5, 6]]], [[[7, 8, 9]]])
    method = srp.methods.get(name, dataset=tokens, model="gpt", embedding=4, blocks=1)
    with refused(rf"{wants} the labels are int32 of shape \(2,\) each; give"):
        simulate(method, tokens)


def test_a_regression_has_one_output_and_takes_integers():
    model = srp.models.LinearRegression(CLASSES.example_shape)
    numbers = srp.data.training_loss(CLASSES, model.loss)
    with jax.numpy_dtype_promotion("standard"):
        history = simulate(srp.algorithms.FedAvg(model), numbers, eval_every=1)
    assert history.mean_accuracy[1] < history.mean_accuracy[0]
    with refused("num_classes=4 must be at most 1; linear_regression has one output; le"):
        srp.models.LinearRegression((D,), num_classes=4)


def test_numbers_are_no_classes(data):
    """Neither in data scored by their training loss; integers may be classes or numbers."""
    model = srp.models.MLP((D,), 1, hidden=())
    message = (
        "model 'mlp' takes classes, data set 'linear_regression' has labels that are "
    )
    for judged in (data, srp.data.training_loss(data, model.loss)):
        with refused(message):
            simulate(srp.algorithms.FedAvg(model), judged)
    LINEAR.check_fits(data)
    shape = CLASSES.example_shape
    layers = [srp.models.Layer("out", nn.Dense(4))]
    srp.models.Split(shape, 4, layers, loss=srp.models.half_square).check_fits(CLASSES)


def test_the_law_of_the_data():
    """Variances of inputs and noise are within five standard errors; clients do not depend on their number."""
    many = srp.data.linear_regression(KEY, 50, 400, D, noise_std=0.5, condition=9.0)
    x, y = flat(many)
    error = 5 * np.sqrt(2 / len(x))
    assert_allclose(x.var(0), [1, 1 / 3, 1 / 9], rtol=error)
    residual = y - x @ np.asarray(many.minimiser, np.float64)
    assert_allclose(residual.var(), 0.25, rtol=error)
    few = srp.data.linear_regression(KEY, 2, 400, D, noise_std=0.5, condition=9.0)
    assert_array_equal(few.x, many.x[:2])
    assert_array_equal(few.y, many.y[:2])
    assert not np.array_equal(few.x[0], few.x[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_clients": 1, "samples": 3},
            r"dim=3 must be below num_clients \* samples = 3, or the minimum is not",
        ),
        ({"condition": 0.5}, "condition=0.5 must be at least 1; give L / mu"),
        ({"key": jax.random.split(KEY)}, r"key has shape \(2,\), give one key"),
    ],
)
def test_refusals(options, message):
    given = {"key": KEY, "num_clients": N, "samples": S, "dim": D} | options
    with refused(message):
        srp.data.linear_regression(**given)


def test_the_training_loss_of_clients_of_any_size():
    """The weighted mean over clients is the loss of all examples; padding is ignored."""
    clients = clients_of((3, 5, 4), (2, 3, 2))
    kernel = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    judged = srp.data.training_loss(CLASSES, srp.models.cross_entropy)
    for i, client in enumerate(clients):
        examples = judged.test_client(i)
        is_padding = jnp.arange(5)[:, None] >= examples.count
        loud = examples._replace(x=jnp.where(is_padding, 1e30, examples.x))
        total, count = judged.score(lambda x: x @ kernel, loud)
        assert count == len(client.y)
        logits = np.asarray(client.x, np.float64) @ kernel
        chosen = logits[np.arange(len(client.y)), client.y]
        expected = np.log(np.exp(logits).sum(1)) - chosen
        assert_allclose(total, expected.sum(), rtol=1e-5)
    model = srp.models.MLP(CLASSES.example_shape, 4, hidden=())
    algorithm = srp.algorithms.FedAvg(model)
    history = simulate(algorithm, judged, num_rounds=1, eval_every=1)
    assert (history.score_name, history.smaller_is_better) == ("training loss", True)
    assert history.test_count.tolist() == [3, 5, 4]
    assert history.reached(float(history.mean_accuracy[0])) == 0


def test_losses_of_another_shape_and_other_data_are_refused():
    def in_columns(logits, y):
        return srp.models.cross_entropy(logits, y)[:, None]

    judged = srp.data.training_loss(CLASSES, in_columns)
    with refused(r"loss returned \(5, 1\) for 5 examples, it must return \(5,\)"):
        judged.score(lambda x: x[:, :4], judged.test_client(0))
    with refused(r"data=\[1\] is not a federation; give srp.data.load\(name"):
        srp.data.training_loss([1], srp.models.cross_entropy)  # pyright: ignore
