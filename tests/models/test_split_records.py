"""A model of layers is one line, and a record rebuilds it if its layers and functions are known ones."""

import flax.linen as nn
import jax
import pytest
from reference.small import refusal

from fedjax_srp import models
from fedjax_srp.parts.description import describe, rebuild

KNOWN = models.Split(
    (8, 8),
    10,
    [
        models.Layer("conv", models.Convolution(4, (3, 3), padding="SAME"), nn.relu),
        models.Layer("fc", models.Dense(16), jax.nn.tanh),
        models.Layer("norm", nn.LayerNorm(epsilon=1e-3)),
        models.Layer("two", nn.Sequential([nn.Dense(6), nn.relu]), block=32),
        models.Layer("out", nn.Dense(10, use_bias=False)),
    ],
    name="mine",
    cut="two",
)


def test_known_layers_are_rebuilt():
    again = rebuild(describe(KNOWN))
    assert again == KNOWN
    assert hash(again) == hash(KNOWN)


def test_a_model_is_one_line():
    shown = repr(KNOWN)
    assert "\n" not in shown
    assert (
        "Layer('conv', Convolution(channels=4, kernel_size=(3, 3), padding='SAME'), relu)"
        in shown
    )
    assert "Layer('two', Sequential(layers=(Dense(features=6), relu)), block=32)" in shown
    assert "Layer('out', Dense(features=10, use_bias=False))" in shown
    own = models.Split((4,), 2, [models.Layer("out", nn.Dense(2), lambda x: 2 * x)])
    assert "Layer('out', Dense(features=2), <lambda>)" in repr(own)


class Own(nn.Module):
    """A layer of the user."""

    def __call__(self, x):
        """The inputs."""
        return x


@pytest.mark.parametrize(
    "layer",
    [models.Layer("out", nn.Dense(2), lambda x: x), models.Layer("out", Own())],
    ids=["lambda", "own"],
)
def test_what_cannot_be_rebuilt_says_how(layer):
    message = refusal(rebuild, describe(models.Split((4,), 2, [layer])))
    assert "build it in Python" in message
    assert "@srp.part" in message


@pytest.mark.parametrize(
    "change",
    [
        {"featurs": 3},
        {"dataclass": "flax.linen.module.Module"},
        {"dataclass": "os.system"},
    ],
)
def test_a_changed_record_is_refused(change):
    record = describe(models.Split((4,), 2, [models.Layer("out", nn.Dense(2))]))
    record["layers"][0]["module"] |= change
    assert refusal(rebuild, record)
