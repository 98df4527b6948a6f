"""LeNet-5 against NumPy; cuts, blocks, dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused
from test_convolution import numpy_network

import fedjax_srp as srp
from fedjax_srp.algorithms.local import example_loss, full_gradient
from fedjax_srp.base import Examples, RoundContext
from fedjax_srp.models import LeNet5, LeNet5CIFAR100
from fedjax_srp.models.lenet import BLOCK, Dropout
from fedjax_srp.xla.backend import traced_for

KEY = jax.random.key(3)
SMALL = {"channels": (3, 8), "hidden": (6, 5)}


def small(shape=(16, 16, 3), **options):
    return LeNet5(shape, 4, **SMALL | options)


def numpy_lenet(params, x):
    """Apply the paper's network."""
    return numpy_network(params, x, [True, True], padding=0)


@pytest.mark.parametrize(
    ("shape", "strategy"),
    [((16, 17, 3), "auto"), ((16, 16), "patches"), ((18, 16, 1), "xla")],
)
def test_logits_agree_with_numpy(shape, strategy):
    model = small(shape, convolution=strategy)
    params = jax.jit(model.init)(KEY)
    params = jax.tree.map(lambda p: p + 0.1, params)  # biases that are not 0
    x = jax.random.normal(KEY, (3, *shape))
    np.testing.assert_allclose(
        jax.jit(model.logits)(params, x), numpy_lenet(params, x), rtol=2e-5, atol=2e-5
    )


def test_cut_anywhere():
    model = LeNet5CIFAR100((16, 16, 3), 4, **SMALL)
    x, whole = jax.random.normal(KEY, (2, 16, 16, 3)), jax.jit(model.init)(KEY)
    layers = whole.representation | whole.head
    expected = numpy_lenet(whole, x)
    for cut in (*model.layer_names, None):
        again = model.recut(cut)
        position = model.layer_names.index(cut) if cut else 5
        params = jax.eval_shape(again.init, KEY)
        assert tuple(params.representation) == model.layer_names[:position]
        assert tuple(params.head) == model.layer_names[position:]
        assert again.name == model.name
        below, above = ({name: layers[name] for name in part} for part in params)
        logits = jax.jit(lambda b, a, x, m=again: m.classify(a, m.represent(b, x)))(
            below, above, x
        )
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


# Blocks: many examples are evaluated a few at a time.


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_many_examples_are_evaluated_in_blocks(platform):
    model, count = small(), 3 * BLOCK - 1
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (count, 16, 16, 3))
    both = lambda params, x: (
        model.logits(params, x),
        model.stem(params.representation, x),
    )
    with traced_for(platform):
        traced = jax.jit(both).trace(params, x)
    together, stem = traced.lower().compile()(params, x)
    np.testing.assert_allclose(together, numpy_lenet(params, x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        jax.jit(model.classify)(params.head, stem), together, rtol=1e-4, atol=1e-6
    )
    # Windows of conv1 for all examples do not fit a GPU if a whole chunk of clients has them.
    assert f"[{count},12,12," not in str(traced.jaxpr)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_gradients_through_blocks(platform):
    """A criterion on the gradient over all examples of a client differentiates in evaluation mode."""
    model = small(convolution="patches")
    params, x = (
        jax.jit(model.init)(KEY),
        jax.random.normal(KEY, (2 * BLOCK + 1, 16, 16, 3)),
    )
    gradient = lambda key: jax.grad(
        lambda p: jnp.mean(jnp.square(model.logits(p, x, key)))
    )(params)
    with traced_for(platform):
        traced = jax.jit(lambda: gradient(None)).trace()
    in_blocks, at_once = traced.lower().compile()(), jax.jit(gradient)(KEY)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        in_blocks,
        at_once,
    )
    if (
        platform == "gpu"
    ):  # windows of all three blocks, kept for the gradient, do not fit for a whole chunk of clients
        assert "[3,864,75]" not in str(traced.jaxpr)


def test_fedsgd_takes_a_few_images_at_a_time():
    """Its gradients in training mode, of a whole chunk of clients, would not fit a GPU with all images at once."""
    model, count = small(), 5 * BLOCK - 1
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (count, 16, 16, 3))
    examples = Examples(x, jnp.arange(count) % model.num_classes, jnp.int32(count))
    context = RoundContext(*[jnp.int32(1)] * 3, 1, jnp.int32(1))
    client = srp.algorithms.FedSGD(model).client
    traced = jax.jit(client).trace(KEY, params, (), examples, context)
    assert f"[{count},12,12," not in str(traced.jaxpr)
    found, expected = (
        traced.lower().compile()(KEY, params, (), examples, context).message,
        jax.jit(lambda: full_gradient(example_loss(model), params, (), examples))(),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        found,
        expected,
    )


def test_the_stem_of_many_clients_under_one_representation():
    model = small()
    params, x = (
        jax.jit(model.init)(KEY),
        jax.random.normal(KEY, (3, BLOCK + 2, 16, 16, 3)),
    )
    own = jax.tree.map(lambda p: jnp.stack([p, -p, 2 * p]), params.representation)
    shared = jax.jit(jax.vmap(model.stem, (None, 0)))(params.representation, x)
    personal = jax.jit(jax.vmap(model.stem))(own, x)
    alone = jax.jit(model.represent)
    for client in range(3):
        mine = jax.tree.map(lambda leaf, c=client: leaf[c], own)
        np.testing.assert_allclose(
            shared[client], alone(params.representation, x[client]), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            personal[client], alone(mine, x[client]), rtol=1e-4, atol=1e-6
        )


# Dropout.


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_dropout_keeps_the_mean(rate):
    x, draws = jnp.array([1.0, -2.0, 3.0]), 20_000
    dropped = jax.vmap(lambda key: Dropout(rate)(key, x))(jax.random.split(KEY, draws))
    share = np.asarray(dropped == 0).mean(0)
    assert np.abs(share - rate).max() < 5 * np.sqrt(rate * (1 - rate) / draws)
    np.testing.assert_allclose(
        dropped[dropped != 0],
        jnp.broadcast_to(x / (1 - rate), dropped.shape)[dropped != 0],
    )
    error = np.abs(np.asarray(x)) * np.sqrt(rate / (1 - rate) / draws)
    assert (np.abs(dropped.mean(0) - x) < 5 * error).all()


def test_cifar100_drops_outputs_of_fc2_only_in_training():
    model = LeNet5CIFAR100(
        (16, 16, 3), 4, **SMALL
    )  # cut at out: features are the outputs of fc2
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (64, 16, 16, 3))
    represent = jax.jit(model.represent)
    judged = np.asarray(represent(params.representation, x))
    trained = np.asarray(represent(params.representation, x, KEY))
    alive = judged != 0
    dropped = (trained == 0) & alive
    assert abs(dropped.sum() / alive.sum() - 0.6) < 5 * np.sqrt(0.24 / alive.sum())
    kept = alive & ~dropped
    np.testing.assert_allclose(trained[kept], judged[kept] / 0.4, rtol=1e-4, atol=1e-6)
    again = represent(params.representation, x, jax.random.key(4))
    assert (np.asarray(again) != trained).any()


@pytest.mark.parametrize(("cut", "settled"), [("out", 4), ("fc2", 3), ("conv1", 0)])
def test_a_stem_ends_where_dropout_begins(cut, settled):
    model = LeNet5CIFAR100((16, 16, 3), 4, cut=cut, **SMALL)
    params, x = jax.jit(model.init)(KEY), jax.random.normal(KEY, (2, 16, 16, 3))
    assert model.stem_layer_names == model.layer_names[:settled]

    def both_ways(params, x, key):
        rest = {
            name: p
            for name, p in params.representation.items()
            if name not in model.stem_layer_names
        }
        stem = model.stem(params.representation, x)
        pairs = [
            (model.rest(rest, stem, k), model.represent(params.representation, x, k))
            for k in (None, key)
        ]
        return pairs, model.logits(params, x, key), model.logits(params, x)

    pairs, in_training, judged = jax.jit(both_ways)(params, x, KEY)
    for stem_first, at_once in pairs:
        np.testing.assert_allclose(stem_first, at_once, rtol=1e-5, atol=1e-6)
    assert (in_training != judged).any()  # wherever the dropout is


# By name, and errors.


def test_models_have_names():
    data = srp.data.from_arrays(
        np.zeros((4, 16, 16, 3), np.float32), np.arange(4), np.zeros((4, 16, 16, 3), np.float32), np.arange(4),
        train_indices=[[0, 1], [2, 3]], test_indices=[[0, 1], [2, 3]],
    )  # fmt: skip
    assert {"lenet5", "lenet5_cifar100", "lstm", "mlp"} <= set(srp.models.names())
    assert srp.models.get("lenet5", data, head_layers=2).stem_layer_names == (
        "conv1",
        "conv2",
        "fc1",
    )
    assert srp.models.get("lenet5_cifar100", data, hidden=(7, 9)).hidden == (7, 9)
    with refused(
        r"unknown option 'width' of model 'lenet5'; choose from channels, hidden"
    ):
        srp.models.get("lenet5", data, width=3)
    with refused(
        r"cut: it follows from head_layers; give head_layers, or call model.recut"
    ):
        srp.models.get("lenet5", data, cut="fc2")
