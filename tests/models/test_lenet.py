"""LeNet-5 against NumPy; cuts, blocks, dropout."""

import jax
import numpy as np
import pytest
from numpy_network import numpy_network

from fedjax_srp.models import LeNet5, LeNet5CIFAR100

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
        params = jax.eval_shape(again.init, KEY)
        assert (*params.representation, *params.head) == model.layer_names
        assert next(iter(params.head), None) == cut
        below, above = ({name: layers[name] for name in part} for part in params)
        features = jax.jit(again.represent)(below, x)
        logits = jax.jit(again.classify)(above, features)
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


# Dropout.


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

    @jax.jit
    def both_ways(params, x, key):
        body = params.representation
        rest = {name: body[name] for name in body if name not in model.stem_layer_names}
        stem_first = model.rest(rest, model.stem(body, x), key)
        return stem_first, model.represent(body, x, key), model.logits(params, x, key)

    stem_first, at_once, in_training = both_ways(params, x, KEY)
    np.testing.assert_allclose(stem_first, at_once, rtol=1e-5, atol=1e-6)
    judged = jax.jit(model.logits)(params, x)
    assert (in_training != judged).any()  # wherever the dropout is
