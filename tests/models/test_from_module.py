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
    np.testing.assert_allclose(
        features, layers.represent(same.representation, X), **close
    )
    (value, ours), (expected, theirs) = (
        jax.jit(jax.value_and_grad(lambda p, m=m: jnp.sum(m.logits(p, X) ** 2)))(p)
        for m, p in ((model, params), (layers, same))
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    gradients = (
        ours.representation["representation"]["layers"],
        ours.head["head"]["layers"],
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        gradients,
        tuple(theirs),
    )
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
        self.a = nnx.Linear(5, 3, rngs=rngs)
        self.z = nnx.Linear(6, 5, rngs=rngs)
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
    params = jax.eval_shape(model.init, KEY)
    below, above = (
        params.representation["representation"]["layers"],
        params.head["head"]["layers"],
    )
    assert ({*below}, {*above}) == ({*names[:2]}, {*names[2:]})


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
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="b")(nn.relu(nn.Dense(5, name="a")(x))) + nn.Dense(
            3, name="c"
        )(x)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=True)(x))


class Dropped(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(4, 3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.a(x))


class Scanned(nnx.Module):
    def __init__(self, rngs):
        each = nnx.split_rngs(splits=2)(nnx.vmap(lambda r: nnx.Linear(4, 4, rngs=r)))
        self.layers = each(rngs)
        self.out = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        over = nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.out(over(lambda carry, layer: layer(carry))(x, self.layers))


REFUSED = {  # message -> (module, head)
    "head='out' is no layer; the module has none; make each layer an attribute": (
        lambda rngs: nnx.Sequential(nnx.Linear(4, 3, rngs=rngs)),
        "out",
    ),
    "head='b' is bypassed: the outputs depend on more than its input": (Skip(), "b"),
    "head='oud' is no layer; choose from fc1, fc2, out": (Linen(), "oud"),
    "it keeps batch_stats, but only parameters are trained and averaged": (
        Normed(),
        "Dense_0",
    ),
    "averaged; for dropout and BatchNorm take srp.models.Split": (Dropped, "a"),
    "whose layers are called in plain Python (not by nnx.scan)": (Scanned, "out"),
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
    model = from_module(net, (4, 2), 3, head)
    params = model.init(KEY)
    below = params.representation["representation"]["layers"]
    above = params.head["head"]["layers"]
    assert [*below, *above] == ["fc1", "rest_0", "rest_2"]
    assert next(iter(above)) == head
    drawn = {**below, **above}
    module = net(jax.random.key(3))
    for name, place in {
        "fc1": lambda m: m.fc1,
        "rest_0": lambda m: m.rest[0],
        "rest_2": lambda m: m.rest[2],
    }.items():
        arrays = drawn[name]["weight"], drawn[name]["bias"]
        both = lambda m, at=place: (at(m).weight, at(m).bias)
        module = equinox.tree_at(both, module, arrays)
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(model.logits(params, X), jax.vmap(module)(X), **close)
    assert model == from_module(net, (4, 2), 3, head)
