"""Modules of flax and Equinox, cut by the name of a layer."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.models import Layer, Split, from_module

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (5, 4, 2))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(6, name="fc1")(x.reshape(x.shape[0], -1)))
        return nn.Dense(3, name="out")(nn.tanh(nn.Dense(5, name="fc2")(x)))


class NNX(nnx.Module):
    def __init__(self, rngs):
        self.fc1, self.fc2 = nnx.Linear(8, 6, rngs=rngs), nnx.Linear(6, 5, rngs=rngs)
        self.out = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        x = x.reshape(-1, self.fc1.kernel.shape[0])  # attributes of layers can be read
        return self.out(nnx.tanh(self.fc2(nnx.relu(self.fc1(x)))))


def plain(cut):
    layers = [
        Layer("fc1", srp.models.Dense(6), nn.relu),
        Layer("fc2", nn.Dense(5), nn.tanh),
        Layer("out", nn.Dense(3)),
    ]
    return Split((4, 2), 3, layers, cut=cut)


@pytest.mark.short("linen-fc2", "nnx-out")
@pytest.mark.parametrize("head", ["fc2", "out"])
@pytest.mark.parametrize("module", [Linen(), NNX], ids=["linen", "nnx"])
def test_a_module_agrees_with_the_model_of_its_layers(module, head):
    model, layers = from_module(module, (4, 2), 3, head), plain(head)
    params = model.init(KEY)
    below, above = (
        params.representation["representation"]["layers"],
        params.head["head"]["layers"],
    )
    assert [*below, *above] == ["fc1", "fc2", "out"]
    assert next(iter(above)) == head
    same = srp.models.SplitParams(below, above)
    features = model.represent(params.representation, X)
    close = {"rtol": 1e-6, "atol": 1e-6}
    before = {"fc2": nn.relu, "out": nn.tanh}[head]  # both cuts are after the activation
    np.testing.assert_allclose(
        features, layers.represent(same.representation, X), **close
    )
    assert (features == before(features)).all() or head == "out"
    np.testing.assert_allclose(model.logits(params, X), layers.logits(same, X), **close)
    ours, theirs = (
        jax.jit(jax.grad(lambda p, m=m: jnp.sum(m.logits(p, X) ** 2)))(p)
        for m, p in ((model, params), (layers, same))
    )
    gradients = (
        ours.representation["representation"]["layers"],
        ours.head["head"]["layers"],
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        gradients,
        tuple(theirs),
    )
    other = model.init(jax.random.key(5))
    assert not np.allclose(
        model.logits(other, X), model.logits(params, X)
    )  # parameters follow from the key
    assert model == from_module(module, (4, 2), 3, head)


class Backwards(nn.Module):
    """Layers whose names are not in the order of calls."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="a")(
            nn.tanh(nn.Dense(5, name="z")(nn.Dense(6, name="m")(x)))
        )


class NNXBackwards(nnx.Module):
    def __init__(self, rngs):
        self.a, self.z = nnx.Linear(5, 3, rngs=rngs), nnx.Linear(6, 5, rngs=rngs)
        self.m = nnx.Linear(2, 6, rngs=rngs)

    def __call__(self, x):
        return self.a(nnx.tanh(self.z(self.m(x))))


@pytest.mark.parametrize(
    ("module", "order"),
    [
        (Backwards(), "m z a"),
        (NNXBackwards, "m z a"),
        (
            nn.Sequential([nn.Dense(3) for _ in range(11)]),
            " ".join(f"layers_{i}" for i in range(11)),
        ),
    ],
    ids=["linen", "nnx", "many"],
)
def test_layers_are_cut_in_the_order_of_calls(module, order):
    names = order.split()
    model = from_module(module, (2,), 3, names[2])
    params = jax.jit(model.init)(KEY)
    below, above = (
        params.representation["representation"]["layers"],
        params.head["head"]["layers"],
    )
    assert ({*below}, {*above}) == ({*names[:2]}, {*names[2:]})
    assert isinstance(module, type) or jnp.allclose(
        model.logits(params, X[:, 0]),
        module.apply({"params": {**below, **above}}, X[:, 0]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_other_half_is_not_computed():
    """The compiler removes the products of the other half."""
    model = from_module(Linen(), (4, 2), 3, "out")
    params = model.init(KEY)
    text = (
        jax.jit(model.classify).lower(params.head, jnp.ones((5, 5))).compile().as_text()
    )
    assert text.count(" dot(") + text.count("custom-call") <= 1


def check_training(module, head):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4, 2)), rng.integers(0, 3, 60)
    rows = np.arange(60).reshape(6, 10)
    data = srp.data.from_arrays(x, y, x + 1, y, train_indices=rows, test_indices=rows)
    method = srp.methods.get(
        "fedrep", dataset=data, model=from_module(module, (4, 2), 3, head)
    )
    history = srp.simulate(method, data, num_rounds=2, key=KEY, progress=False, devices=1)
    assert history.diverged is None


@pytest.mark.long
@pytest.mark.parametrize("module", [Linen(), NNX], ids=["linen", "nnx"])
def test_a_module_is_trained(module):
    check_training(module, "out")


class Skip(nn.Module):
    is_centred: bool = False  # a constant input then becomes zeros

    @nn.compact
    def __call__(self, x):
        x = x - x.mean(axis=1, keepdims=True) if self.is_centred else x
        return nn.Dense(3, name="b")(nn.relu(nn.Dense(5, name="a")(x))) + nn.Dense(
            3, name="c"
        )(x)


class LateBias(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, use_bias=False, name="out")(x) + self.param(
            "bias", nn.initializers.zeros, (1, 3)
        )


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.fc, self.drop = nnx.Linear(4, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.fc(x))


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=True)(x))


REFUSED = {  # message -> (module, head)
    "head='out' is no layer; the module has none; make each layer an attribute": (
        lambda rngs: nnx.Sequential(nnx.Linear(4, 3, rngs=rngs)),
        "out",
    ),
    "head='b' is bypassed: the outputs depend on more than its input": (Skip(), "b"),
    "is bypassed: the outputs depend on more": (Skip(is_centred=True), "b"),
    "head='out' is bypassed": (LateBias(), "out"),  # by a parameter that is zero at first
    "head='oud' is no layer; choose from fc1, fc2, out": (Linen(), "oud"),
    "it keeps batch_stats, but only parameters are trained and averaged; for dropout and BatchNorm take srp": (
        Normed(),
        "Dense_0",
    ),
    "it keeps Rng": (Dropping, "fc"),
    "Linen is a class of linen; call it": (Linen, "out"),
    "module=3 must be": (3, "out"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_modules_that_cannot_be_cut_are_refused(message):
    module, head = REFUSED[message]
    with refused(re.escape(message)):
        from_module(module, (4, 2) if isinstance(module, Linen) else (4,), 3, head)


@pytest.fixture(scope="module")
def equinox():
    return pytest.importorskip(
        "equinox", reason="no Equinox here: install equinox to test its modules"
    )


@pytest.fixture(scope="module")
def net(equinox):
    class Net(equinox.Module):
        fc1: equinox.nn.Linear
        rest: list
        scale: float  # no parameter

        def __init__(self, key):
            a, b, c = jax.random.split(key, 3)
            self.fc1 = equinox.nn.Linear(8, 6, key=a)
            self.rest = [
                equinox.nn.Linear(6, 5, key=b),
                jnp.tanh,
                equinox.nn.Linear(5, 3, key=c),
            ]
            self.scale = 1.0

        def __call__(self, x):
            x = self.scale * nn.relu(self.fc1(x.reshape(-1)))
            for layer in self.rest:
                x = layer(x)
            return x

    return Net


@pytest.mark.parametrize("head", ["rest_0", "rest_2"])
def test_a_module_of_equinox_is_applied_to_each_example(equinox, net, head):
    for make in (net, lambda key: net(key)):
        model = from_module(make, (4, 2), 3, head)
        params = model.init(KEY)
        below, above = (
            params.representation["representation"]["layers"],
            params.head["head"]["layers"],
        )
        assert [*below, *above] == ["fc1", "rest_0", "rest_2"]
        assert next(iter(above)) == head
        module, drawn = net(jax.random.key(3)), {**below, **above}
        for place, name in (
            (lambda m: m.fc1, "fc1"),
            (lambda m: m.rest[0], "rest_0"),
            (lambda m: m.rest[2], "rest_2"),
        ):
            arrays = drawn[name]["weight"], drawn[name]["bias"]
            module = equinox.tree_at(
                lambda m, at=place: (at(m).weight, at(m).bias), module, arrays
            )
        np.testing.assert_allclose(
            model.logits(params, X), jax.vmap(module)(X), rtol=1e-6, atol=1e-6
        )
        ours = jax.grad(lambda p, m=model: jnp.sum(m.logits(p, X) ** 2))(params)
        theirs = equinox.filter_grad(lambda m: jnp.sum(jax.vmap(m)(X) ** 2))(module)
        gradient = (
            ours.representation["representation"]["layers"] | ours.head["head"]["layers"]
        )["rest_0"]["weight"]
        np.testing.assert_allclose(gradient, theirs.rest[0].weight, rtol=1e-5, atol=1e-6)
        assert not np.allclose(
            model.logits(model.init(jax.random.key(5)), X), model.logits(params, X)
        )
    assert from_module(net, (4, 2), 3, head) == from_module(net, (4, 2), 3, head)


def test_modules_of_equinox_are_trained(equinox, net):
    check_training(net, "rest_2")


def test_modules_of_equinox_with_other_state_are_refused(equinox):
    class Normed(equinox.Module):
        norm: equinox.nn.BatchNorm
        out: equinox.nn.Linear

        def __init__(self, key):
            self.norm = equinox.nn.BatchNorm(4, "batch", mode="ema")
            self.out = equinox.nn.Linear(4, 3, key=key)

        def __call__(self, x):
            return self.out(x)

    with refused("it keeps StateIndex, but only parameters are trained"):
        from_module(Normed, (4,), 3, "out")
    with refused("head='in' is no layer; choose from layers_0, layers_1"):
        from_module(lambda key: equinox.nn.MLP(4, 3, 5, 1, key=key), (4,), 3, "in")
    layers = equinox.nn.Linear, equinox.nn.Dropout
    with refused(r"requires a key.*; give a linen module"):
        from_module(
            lambda key: equinox.nn.Sequential([layers[0](4, 3, key=key), layers[1](0.5)]),
            (4,),
            3,
            "layers_0",
        )
