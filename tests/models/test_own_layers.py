"""Models of custom layers: modules, convolutions, and layers that do not fit."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import assert_close, changed, refused

import fedjax_srp as srp

KEY = jax.random.key(0)


class Doubled(nn.Module):
    """A module without parameters."""

    @nn.compact
    def __call__(self, x):
        return 2 * x


def model_of(module):
    layers = [srp.models.Layer("odd", module), srp.models.Layer("out", nn.Dense(3))]
    return srp.models.Split((4,), 3, layers, name="own")


def test_a_module_without_parameters_is_a_layer():
    model, x = model_of(Doubled()), jax.random.normal(KEY, (5, 4))
    params = model.init(KEY)
    assert not jax.tree.leaves(params.representation)
    kernel, bias = (np.asarray(params.head["out"][name]) for name in ("kernel", "bias"))
    expected = (
        2 * np.asarray(x) @ kernel + bias
    )  # products cancel: a sum near zero is rounded as its products are
    assert_close(model.logits(params, x), expected, rtol=1e-6)


def test_every_layer_has_its_own_noise():
    noise = lambda key, x: x + jax.random.normal(key, x.shape)
    layers = [srp.models.Layer(name, Doubled(), noise=noise) for name in "ab"]
    model, x = srp.models.Split((4,), 4, layers, cut="b"), jnp.zeros((5, 4))
    params = model.init(KEY)
    first = model.represent(params.representation, x, KEY)
    second = model.logits(params, x, KEY) - 2 * first
    assert (jnp.abs(first - second) > 1e-3).all()


def test_modules_with_equal_lists_are_equal():
    sequential = lambda: nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(4)])
    model = model_of(sequential())
    assert (
        model
        == model_of(sequential())
        != model_of(nn.Sequential([nn.Dense(5), nn.tanh, nn.Dense(4)]))
    )
    assert hash(model) == hash(model_of(sequential()))


class Counting(nn.Module):
    """A module that counts its calls."""

    @nn.compact
    def __call__(self, x):
        self.variable("counts", "calls", lambda: jnp.int32(0))
        return x


def test_a_module_with_other_variables_is_refused():
    with refused("layer 'odd' keeps counts, but only parameters"):
        model_of(Counting()).init(KEY)


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(x)


def test_a_module_that_fails_is_named():
    """It takes only x: dropout goes into the noise of a layer."""
    with refused(r"layer 'odd', module\(x\) with x .*PRNG.*; a module takes only x"):
        model_of(Dropping()).init(KEY)


@pytest.mark.short("*-2-auto", "SAME-size1-*")
@pytest.mark.parametrize(
    ("stride", "strategy"), [(1, "auto"), (2, "auto"), (3, "auto"), (2, "xla")]
)
@pytest.mark.parametrize(
    ("padding", "size"),
    [
        ("VALID", (2, 4)),
        ("SAME", (3, 3)),
        ("SAME", (5, 1)),
        (1, (3, 3)),
        ("SAME", (5,)),
        (1, (4,)),
    ],
)
def test_convolutions_and_their_gradients_agree_with_flax(
    padding, size, stride, strategy
):
    x = jax.random.normal(KEY, (2, 9, 8, 3) if len(size) == 2 else (2, 9, 3))
    ours = srp.models.Convolution(4, size, strategy, padding=padding, stride=stride)
    flaxs = nn.Conv(4, size, stride, padding=padding)

    def both(params, module):
        outputs, pull = jax.vjp(module.apply, params, x)
        return outputs, pull(jnp.sin(outputs))

    both, params = jax.jit(both, static_argnums=1), jax.jit(flaxs.init)(KEY, x)
    assert_close(both(params, ours), both(params, flaxs), rtol=1e-5)


class Branching(nn.Module):
    """A module with a Python `if` on numbers that are traced."""

    def __call__(self, x):
        return x.reshape(len(x), -1)[:, :10] if x.sum() > 0 else x


def images(y):
    x = np.zeros((20, 8, 8), np.float32)
    return srp.data.from_arrays(
        x,
        y,
        x + 1,
        y,
        train_indices=[range(20)],
        test_indices=[range(20)],
        num_classes=10,
    )


MISFITS = {  # case -> (options of the model, error)
    "a Python if": (
        {"layers": [srp.models.Layer("out", Branching())]},
        r"layer 'out', module.*Attempted boolean conversion.*use jnp.where in place of `if`",
    ),
    "a dense layer on images": (
        {"layers": [srp.models.Layer("out", nn.Dense(10))]},
        r"model 'own' returns \(8, 10\) for an example, .*; flatten before a dense layer",
    ),
    "another width": (
        {"layers": [srp.models.Layer("out", srp.models.Dense(9))]},
        r"model 'own' returns \(9,\) for an",
    ),
    "a loss that is a mean": (
        {
            "layers": [srp.models.Layer("out", srp.models.Dense(10))],
            "loss": lambda outputs, y: outputs.mean(),
        },
        r"model 'own' returns \(10,\) .* on which its loss fails: loss returned \(\) for 20 examples",
    ),
}


def test_a_loss_that_broadcasts_outputs_and_labels_against_each_other_is_refused():
    loss = jax.jit(lambda o, y: jnp.square(o - y).mean(-1))
    model = srp.models.Split(
        (8, 8), 1, [srp.models.Layer("out", srp.models.Dense(1))], loss=loss
    )
    message = r"labels of shape \(\), of which its loss pairs each with the outputs of all examples; take outputs"
    with jax.numpy_rank_promotion("allow"), refused(message):
        model.check_fits(images(np.arange(20) % 10))


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: jnp.square(outputs[:, 0] - y),
        jax.vmap(lambda outputs, y: outputs[y]),
        jax.jit(lambda outputs, y: outputs.mean(-1)),  # of the outputs alone
    ],
)
def test_a_loss_of_each_example_is_taken(loss):
    model = srp.models.Split(
        (8, 8), 10, [srp.models.Layer("out", srp.models.Dense(10))], loss=loss
    )
    model.check_fits(images(np.arange(20) % 10))


@pytest.mark.parametrize("case", MISFITS)
def test_outputs_that_do_not_fit_the_labels_are_refused(case):
    options, message = MISFITS[case]
    model = srp.models.Split((8, 8), 10, name="own", **options)
    data = images(np.arange(20) % 10)
    with refused(message):
        srp.simulate(
            srp.algorithms.FedAvg(model), data, num_rounds=1, key=KEY, progress=False
        )


def test_equal_models_are_tried_on_examples_of_equal_shapes_once():
    labels = []

    def loss(outputs, y):
        labels.append(len(y))
        return srp.models.cross_entropy(outputs, y)

    model = changed(srp.models.MLP((8, 8), 10, hidden=()), loss=loss)
    data = images(np.arange(20) % 10)
    for equal in (model, dataclasses.replace(model)):
        equal.check_fits(data)
    assert labels.count(20) == 1
    dataclasses.replace(model, num_classes=11).check_fits(data)
    assert labels.count(20) == 2


@srp.part
class BranchingModel(srp.models.MLP):
    """A model of one's own with a Python `if` on numbers that are traced."""

    def logits(self, params, x, key=None):
        return super().logits(params, x, key) if x.sum() > 0 else x


def test_a_model_that_cannot_be_traced_is_one_line():
    model = BranchingModel((8, 8), num_classes=10, hidden=(3,))
    with refused("model .*on which it fails: .*use jnp.where in place"):
        model.check_fits(images(np.arange(20) % 10))
