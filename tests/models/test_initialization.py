"""PyTorch's initialization: parameters have the documented law, and nothing else of a model changes."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from scipy import stats

import fedjax_srp as srp
from fedjax_srp.models import CropAndFlip, LeNet5
from fedjax_srp.parts.description import describe

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def model():
    return dataclasses.replace(
        LeNet5((20, 20, 3), 10, channels=(6, 7), hidden=(20, 15)), initialization="torch"
    )


def by_layer(params):
    return {**params.representation, **params.head}


def test_weights_and_biases_are_uniform_within_one_over_the_root_of_the_inputs(model):
    # 20 x 20 -> 16 x 16 -> 8 x 8 -> 4 x 4 -> 2 x 2 with 7 channels
    inputs = {
        "conv1": 5 * 5 * 3,
        "conv2": 5 * 5 * 6,
        "fc1": 2 * 2 * 7,
        "fc2": 20,
        "out": 15,
    }
    drawn = jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 40))
    found = by_layer(drawn)
    assert set(found) == set(inputs)
    for name, fan_in in inputs.items():
        for leaf in found[name].values():
            values = np.asarray(leaf, float).ravel() * np.sqrt(fan_in)
            assert np.abs(values).max() <= 1 + 1e-6
            assert stats.kstest(values, stats.uniform(-1, 2).cdf).pvalue > 1e-4
    # Every leaf has its own draws.
    firsts = [
        float(leaf.ravel()[0]) * np.sqrt(inputs[name])
        for name in inputs
        for leaf in by_layer(drawn)[name].values()
    ]
    assert len(set(np.round(firsts, 5))) == 10


def test_only_the_initial_parameters_change(model):
    plain = LeNet5((20, 20, 3), 10, channels=(6, 7), hidden=(20, 15))
    params, x = model.init(KEY), jax.random.normal(KEY, (2, 20, 20, 3))
    np.testing.assert_array_equal(model.logits(params, x), plain.logits(params, x))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, plain.init(KEY))


def test_the_cut_and_augmentation_do_not_change_the_draws(model):
    whole = by_layer(model.init(KEY))
    for other in (
        model.recut("fc1"),
        model.recut(None),
        dataclasses.replace(model, augment=CropAndFlip(padding=1)).recut("fc2"),
    ):
        jax.tree.map(np.testing.assert_array_equal, by_layer(other.init(KEY)), whole)
    assert list(model.recut("fc1").init(KEY).head) == ["fc1", "fc2", "out"]


def test_a_method_and_its_record_have_the_initialization():
    data = srp.data.load("digits", num_clients=4, classes_per_client=3)
    options = {"hidden": (6,), "initialization": "torch"}
    method = srp.methods.get("fedavg", dataset=data, **options)
    assert method.algorithm.model.initialization == "torch"
    assert describe(method)["algorithm"]["model"]["initialization"] == "torch"
