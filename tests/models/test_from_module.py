"""Flax modules as they are, cut by the name of a layer."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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
        return self.out(nnx.tanh(self.fc2(nnx.relu(self.fc1(x.reshape(x.shape[0], -1))))))


def plain(cut):
    layers = [
        Layer("fc1", srp.models.Dense(6), nn.relu),
        Layer("fc2", nn.Dense(5), nn.tanh),
        Layer("out", nn.Dense(3)),
    ]
    return Split((4, 2), 3, layers, cut=cut)


@pytest.mark.parametrize("head", ["fc2", "out"])
@pytest.mark.parametrize("module", [Linen(), NNX], ids=["linen", "nnx"])
def test_it_is_the_model_of_its_layers(module, head):
    model, layers = from_module(module, (4, 2), 3, head), plain(head)
    params = model.init(KEY)
    below, above = params.representation["representation"]["layers"], params.head["head"]["layers"]
    assert [*below, *above] == ["fc1", "fc2", "out"]
    assert next(iter(above)) == head
    same = srp.models.SplitParams(below, above)
    features = model.represent(params.representation, X)
    close = {"rtol": 1e-6, "atol": 1e-6}
    before = {"fc2": nn.relu, "out": nn.tanh}[head]  # the cut of a `Split` is behind the activation, and so is this
    np.testing.assert_allclose(features, layers.represent(same.representation, X), **close)
    assert (features == before(features)).all() or head == "out"
    np.testing.assert_allclose(model.logits(params, X), layers.logits(same, X), **close)
    ours, theirs = (
        jax.grad(lambda p, m=m: jnp.sum(m.logits(p, X) ** 2))(p) for m, p in ((model, params), (layers, same))
    )
    gradients = ours.representation["representation"]["layers"], ours.head["head"]["layers"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), gradients, tuple(theirs))
    other = model.init(jax.random.key(5))
    assert not np.allclose(model.logits(other, X), model.logits(params, X))  # parameters follow from the key
    assert model == from_module(module, (4, 2), 3, head)


def test_the_other_half_costs_nothing():
    """Half a program has half the products: those of the other half are left out when it is compiled."""
    model = from_module(Linen(), (4, 2), 3, "out")
    params = model.init(KEY)
    text = jax.jit(model.classify).lower(params.head, jnp.ones((5, 5))).compile().as_text()
    assert text.count(" dot(") + text.count("custom-call") <= 1


@pytest.mark.parametrize("module", [Linen(), NNX], ids=["linen", "nnx"])
def test_it_is_trained(module):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4, 2)), rng.integers(0, 3, 60)
    rows = np.arange(60).reshape(6, 10)
    data = srp.data.from_arrays(x, y, x + 1, y, train_indices=rows, test_indices=rows)
    method = srp.methods.get("fedrep", dataset=data, model=from_module(module, (4, 2), 3, "out"))
    history = srp.simulate(method, data, num_rounds=2, key=KEY, progress=False)
    assert history.diverged is None


class Skip(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="b")(nn.relu(nn.Dense(5, name="a")(x))) + nn.Dense(3, name="c")(x)


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
    "head='b' does not decide the outputs by its input alone": (Skip(), "b"),
    "head='oud' is no layer; choose from fc1, fc2, out": (Linen(), "oud"),
    "it keeps batch_stats, and only parameters are trained": (Normed(), "Dense_0"),
    "it keeps Rng": (Dropping, "fc"),
    "give a linen module, or rngs -> a module of nnx": (Linen, "out"),
    "module=3 must be": (3, "out"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_cut_is_refused_in_one_line(message):
    module, head = REFUSED[message]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        from_module(module, (4, 2) if isinstance(module, Linen) else (4,), 3, head)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
