"""Sizes of models agree with the papers."""

import itertools

import jax
import pytest

from fedjax_srp.models import CNN, LSTM, MLP, LeNet5, LeNet5CIFAR100, ResNet18, TokenLSTM


def dense(*widths, window=1):
    """Return the numbers of parameters of consecutive layers; `window` is the area of a convolution's kernel."""
    return [window * a * b + b for a, b in itertools.pairwise(widths)]


SIZES = [
    (MLP((28, 28), 10), dense(784, 512, 256, 64, 10)),
    # 32 - 4 = 28, / 2 = 14, - 4 = 10, / 2 = 5
    (LeNet5((32, 32, 3), 10), dense(3, 64, 64, window=25) + dense(25 * 64, 120, 64, 10)),
    (
        LeNet5CIFAR100((32, 32, 3), 100),
        dense(3, 64, 128, window=25) + dense(25 * 128, 256, 128, 100),
    ),
    # 28 - 4 = 24, / 2 = 12, - 4 = 8, / 2 = 4
    (LeNet5((28, 28), 10), dense(1, 64, 64, window=25) + dense(16 * 64, 120, 64, 10)),
    # 32 -> 16 -> 8 -> 4
    (
        CNN((32, 32, 3), 100),
        dense(3, 32, 64, 128, 128, 256, 256, window=9) + dense(16 * 256, 1024, 512, 100),
    ),
    (
        LSTM((7,), 3, vocabulary=11, embedding=4, features=5, dense=6),
        [11 * 4, 4 * (4 * 5 + 5 * 5 + 5), *dense(5, 6, 3)],
    ),
]


def layers_of(model):
    params = jax.eval_shape(model.init, jax.random.key(0))
    return params.representation | params.head


@pytest.mark.parametrize(
    ("model", "expected"), SIZES, ids=[model.name for model, _ in SIZES]
)
def test_layer_by_layer(model, expected):
    found = {
        name: sum(leaf.size for leaf in jax.tree.leaves(layer))
        for name, layer in layers_of(model).items()
    }
    assert found == dict(zip(model.layer_names, expected, strict=True))


@pytest.mark.parametrize(
    ("model", "expected"),
    [(TokenLSTM((20,), 10_004), 4_050_748), (ResNet18((32, 32, 3), 10), 11_173_962)],
)
def test_as_a_whole_without_statistics(model, expected):
    found = 0
    for path, leaf in jax.tree.leaves_with_path(layers_of(model)):
        if "batch_stats" not in jax.tree_util.keystr(path):
            found += leaf.size
    assert found == expected
