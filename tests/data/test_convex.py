"""Linear regression with a known minimum, and the training loss as a score, against NumPy in double precision."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, clients_of, federation, refused

import fedjax_srp as srp
from fedjax_srp.base import Examples

N, S, D = 4, 30, 3


@pytest.fixture(scope="module")
def data():
    return srp.data.linear_regression(KEY, N, S, D, noise_std=0.5, condition=9.0)


def flat(data):
    return np.asarray(data.x, np.float64).reshape(-1, D), np.asarray(
        data.y, np.float64
    ).reshape(-1)


def loss(x, y, w):
    return 0.5 * np.mean((y - x @ w) ** 2)


def test_the_minimum_is_that_of_least_squares(data):
    x, y = flat(data)
    minimiser, residuals, _, singular = np.linalg.lstsq(x, y, rcond=None)
    np.testing.assert_allclose(data.minimiser, minimiser, rtol=1e-5)
    np.testing.assert_allclose(
        data.curvature, [singular[-1] ** 2 / len(x), singular[0] ** 2 / len(x)], rtol=1e-5
    )
    w = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(
        data.gap(jnp.asarray(w, jnp.float32)),
        loss(x, y, w) - residuals[0] / len(x) / 2,
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        data.distance(jnp.asarray(w, jnp.float32)),
        np.linalg.norm(w - minimiser),
        rtol=1e-5,
    )


def test_clients_are_scored_by_their_training_loss(data):
    model, w = (
        srp.models.LinearRegression((D,)),
        np.array([[1.0], [-2.0], [0.5]], np.float32),
    )
    params = srp.models.SplitParams({}, {"out": {"kernel": jnp.asarray(w)}})
    for i in range(N):
        client = data.test_client(jnp.int32(i))
        total, count = data.score(lambda x: model.logits(params, x), client)
        x, y = np.asarray(data.x[i], np.float64), np.asarray(data.y[i], np.float64)
        np.testing.assert_allclose(total / count, loss(x, y, w[:, 0]), rtol=1e-5)
        np.testing.assert_allclose(
            jnp.mean(model.loss(model.logits(params, client.x), client.y)),
            total / count,
            rtol=1e-5,
        )


@pytest.mark.parametrize("name", ["fedproto", "fedpac", "fedrod", "fedas", "knn_per"])
def test_methods_that_count_classes_refuse_numbers(name):
    numbers = srp.data.training_loss(
        federation(clients_of((3,), (2,))), srp.models.half_square
    )  # integers
    method = srp.methods.get(
        name, dataset=numbers, model=srp.models.LinearRegression(numbers.example_shape)
    )
    message = (
        f"{name} needs class labels, but model 'linear_regression' takes numbers; give"
    )
    with refused(message), jax.numpy_dtype_promotion("standard"):
        srp.simulate(method, numbers, num_rounds=1, key=KEY, progress=False)
    tokens = srp.data.next_tokens(
        [np.arange(1, 13).reshape(2, 6)], [np.arange(1, 7).reshape(1, 6)]
    )
    method = srp.methods.get(name, dataset=tokens, model="gpt", embedding=4, blocks=1)
    with refused(
        rf"{name} needs class labels, but the labels are int32 of shape \(5,\) each; give"
    ):
        srp.simulate(method, tokens, num_rounds=1, key=KEY, progress=False)


def test_a_regression_has_one_output_and_takes_integers():
    classes = federation(clients_of((3,), (2,)))
    model = srp.models.LinearRegression(classes.example_shape)
    numbers = srp.data.training_loss(classes, model.loss)
    options = {"num_rounds": 2, "eval_every": 1, "key": KEY, "progress": False}
    with jax.numpy_dtype_promotion("standard"):
        history = srp.simulate(srp.algorithms.FedAvg(model), numbers, **options)
    assert history.mean_accuracy[1] < history.mean_accuracy[0]
    with refused(
        "num_classes=4 must be at most 1; linear_regression has one output; leave it out"
    ):
        srp.models.LinearRegression((D,), num_classes=4)


def test_numbers_are_no_classes(data):
    """Neither in data scored by their training loss; integers may be classes or numbers."""
    model = srp.models.MLP((D,), 1, hidden=())
    message = r"model 'mlp' takes classes, data set 'linear_regression' has labels that are float32; choose"
    for judged in (data, srp.data.training_loss(data, model.loss)):
        with refused(message):
            srp.simulate(
                srp.algorithms.FedAvg(model),
                judged,
                num_rounds=1,
                key=KEY,
                progress=False,
            )
    srp.models.LinearRegression((D,)).check_fits(data)
    classes = federation(clients_of((3,), (2,)))
    layers = [srp.models.Layer("out", nn.Dense(4))]
    srp.models.Split(
        classes.example_shape, 4, layers, loss=srp.models.half_square
    ).check_fits(classes)
    tokens = srp.models.LSTM(classes.example_shape, 4)
    with refused(r"model 'lstm' takes integer tokens, .* has float32 inputs"):
        tokens.check_fits(srp.data.training_loss(classes, tokens.loss))


def test_the_law_of_the_data():
    """Variances of inputs and noise are within five standard errors; clients do not depend on their number."""
    many = srp.data.linear_regression(KEY, 50, 400, D, noise_std=0.5, condition=9.0)
    x, y = flat(many)
    number = len(x)
    np.testing.assert_allclose(x.var(0), [1, 1 / 3, 1 / 9], rtol=5 * np.sqrt(2 / number))
    residual = y - x @ np.asarray(many.minimiser, np.float64)
    assert abs(residual.var() - 0.25) < 5 * 0.25 * np.sqrt(2 / number)
    few = srp.data.linear_regression(KEY, 2, 400, D, noise_std=0.5, condition=9.0)
    np.testing.assert_array_equal(few.x, many.x[:2])
    np.testing.assert_array_equal(few.y, many.y[:2])
    assert not np.array_equal(few.x[0], few.x[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"num_clients": 1, "samples": 3},
            "dim=3 must be below num_clients \\* samples = 3, or the minimum is not",
        ),
        ({"condition": 0.5}, "condition=0.5 must be at least 1; give L / mu"),
        ({"samples": 0}, "samples=0 must be at least 1"),
        ({"key": jax.random.split(KEY)}, "key has shape \\(2,\\), give one key"),
    ],
)
def test_refusals(options, words):
    with refused(words):
        srp.data.linear_regression(
            **{"key": KEY, "num_clients": N, "samples": S, "dim": D} | options
        )


def test_the_training_loss_of_clients_of_any_size():
    """The weighted mean over clients is the loss of all examples; padding is ignored."""
    clients = clients_of((3, 5, 4), (2, 3, 2))
    data, rng = federation(clients), np.random.default_rng(0)
    kernel = rng.normal(size=(clients[0].x.shape[1], data.num_classes)).astype(np.float32)
    judged = srp.data.training_loss(data, srp.models.cross_entropy)
    totals, counts = [], []
    for i, client in enumerate(clients):
        examples = judged.test_client(jnp.int32(i))
        padding = jnp.arange(examples.y.shape[0]) >= examples.count
        loud = Examples(
            jnp.where(padding[:, None], 1e30, examples.x), examples.y, examples.count
        )
        total, count = judged.score(lambda x: x @ kernel, loud)
        logits = np.asarray(client.x, np.float64) @ kernel
        chosen = logits[np.arange(len(client.y)), client.y]
        np.testing.assert_allclose(
            total, (np.log(np.exp(logits).sum(1)) - chosen).sum(), rtol=1e-5
        )
        totals.append(float(total))
        counts.append(float(count))
    assert counts == [3, 5, 4]
    model = srp.models.MLP(data.example_shape, data.num_classes, hidden=())
    history = srp.simulate(
        srp.algorithms.FedAvg(model),
        judged,
        num_rounds=1,
        eval_every=1,
        key=KEY,
        progress=False,
        devices=1,
    )
    assert (history.score_name, history.smaller_is_better) == ("training loss", True)
    assert history.test_count.tolist() == counts
    assert history.reached(float(history.mean_accuracy[0])) == 0
    in_columns = srp.data.training_loss(
        data, lambda logits, y: srp.models.cross_entropy(logits, y)[:, None]
    )
    with refused(r"loss returned \(5, 1\) for 5 examples, it must return \(5,\)"):
        in_columns.score(lambda x: x @ kernel, in_columns.test_client(jnp.int32(0)))
    with refused(
        r"training_loss: data=\[1\] is not a federation; give srp.data.load\(name"
    ):
        srp.data.training_loss([1], srp.models.cross_entropy)  # pyright: ignore
