"""Descriptions of parts: every part is rebuilt from its description, and what has none is named."""

import dataclasses
import functools
import importlib
import json
import subprocess
import sys
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from public_calls import PARTS, fields_of
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp import models, participation
from fedjax_srp.parts import description
from fedjax_srp.parts import part as parts
from fedjax_srp.parts.description import (
    describe,
    own_code,
    rebuild,
    unknowns,
)
from fedjax_srp.results.json_files import jsonable

MODEL = models.MLP((8, 8), num_classes=10, hidden=(4,))
ADAM = srp.optimizer(optax.adam, learning_rate=0.001, nesterov=True)
NO_RECORD = (
    models.Split,
    srp.algorithms.LinearFedAvg,
    srp.algorithms.LinearFedRep,
)  # of modules, of tasks
MADE = {
    **{cls.__name__: cls(**fields_of(cls)) for cls in PARTS if cls not in NO_RECORD},
    "optax": srp.algorithms.FedProx(
        MODEL, srp.Training(ADAM), fine_tune_optimizer=srp.SGD(0.125, 0.5)
    ),
    "nested": srp.clocks.Dynamic(
        srp.clocks.Exponential(srp.clocks.Uniform(0.1, [1, 2])), ordered=True
    ),
    "of several": participation.Doubling(initial=5, rounds_per_stage=[1, 2]),
    "within": participation.Deadline(1.5, 3, participation.Uniform(4)),
    "without a cut": MODEL.recut(None),
    "of another type": models.CNN((16, 16), 4, dtype=jnp.bfloat16),
    "augmented": models.MLP(
        (8, 8), 10, augment=models.CropAndFlip(1, fill=[0.0, 0.5, 1.0]), cut="fc2"
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_every_part_is_described_and_rebuilt(name):
    made = MADE[name]
    written = describe(made)
    assert written["part"] == parts.path_of(type(made))
    assert list(written) == ["part", *parts.fields(type(made)).hints]
    assert not list(unknowns(written))
    kept = json.loads(json.dumps(jsonable(written)))
    assert kept == written
    again = rebuild(kept)
    assert type(again) is type(made)
    assert again == made
    assert jax.tree.structure(again) == jax.tree.structure(made)
    assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(made)))


# What is not written down in full.


def own_loss(outputs, y):
    return outputs[:, 0] - y


class Net(nn.Module):
    """Flax module, described by its class and its fields."""

    width: int = 4
    activation: object = nn.tanh

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="out")(
            self.activation(nn.Dense(self.width, name="fc")(x))
        )


class Other(nnx.Module):
    """The same with nnx, described by its name."""

    def __init__(self, rngs):
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


class Odd:
    """Object without a description."""

    def scaled(self, x):
        """Method of an object, unknown as well."""
        return x


def own_scale(by):
    def scale(x, by=by):
        return by * x

    return scale


def decorated(by):
    @functools.wraps(own_loss)
    def scaled(outputs, y):
        return by * own_loss(outputs, y)

    return scaled


@dataclasses.dataclass(frozen=True)
class Table:
    """Dataclass with a field that it does not print."""

    rates: tuple = dataclasses.field(repr=False)
    parent: object = dataclasses.field(default=None, repr=False)


def class_around(by):
    @srp.part
    class Around(srp.algorithms.FedAvg):
        """Algorithm with a method that reads a variable around its class."""

        def server(self, key, server, mean, context):
            return jax.tree.map(
                lambda leaf: by * leaf, super().server(key, server, mean, context)
            )

    return Around


class Add(NamedTuple):
    """Function of a user with numbers."""

    by: float


class Scale(NamedTuple):
    """Another one, which Python calls equal."""

    by: float


def test_fields_that_are_not_printed_and_classes_are_of_the_record():
    assert describe(Table((1.0,))) != describe(Table((2.0,)))
    assert describe(Table((1.0,), parent=Odd())) == describe(Table((1.0,)))
    assert describe(Add(1.0)) != describe(Scale(1.0))


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        (optax.adam(0.1), False),
        (lambda x: x, False),
        (Odd().scaled, False),
        (jax.jit(Odd().scaled), False),
        (own_scale(2.0), True),
        (decorated(2.0), False),
        (jax.grad(nn.relu), False),
        (jax.jit(own_loss), True),
        (functools.partial(np.mean, axis=0), True),
        (functools.partial(lambda x: x, 1), False),
        (jax.random.key(3), True),
        ({"deep": [(Odd(),)]}, False),
        (srp.algorithms.FedAvg(MODEL, srp.Training(optax.sgd(0.1))), False),
        (Net(8, nn.relu), True),
        (Net(activation=lambda x: x), False),
        (models.from_module(Other, (3,), 2, head="out"), True),
        (models.from_module(lambda rngs: Other(rngs), (3,), 2, head="out"), False),
        (class_around(2.0)(MODEL), True),
    ],
)
def test_objects_without_description_are_named(value, is_known):
    description = describe({"given": [value]})
    json.dumps(description)
    assert (not list(unknowns(description))) == is_known


def test_modules_are_described_by_fields_that_differ_from_defaults():
    layers = [models.Layer("out", nn.Dense(2, use_bias=False))]
    (only,) = describe(models.Split((3,), 2, layers))["layers"]
    dense = {"dataclass": "flax.linen.linear.Dense", "features": 2, "use_bias": False}
    assert only["module"] == dense
    four, five = (describe(Net(width)) for width in (4, 5))
    assert four != five
    assert four == describe(Net())


def test_long_arrays_have_a_checksum_of_every_entry():
    times = np.ones((30, 20))
    written = describe(srp.clocks.Trace(times))["times"]
    assert written["shape"] == [30, 20]
    times[-1, -1] = 2.0
    assert written != describe(srp.clocks.Trace(times))["times"]
    assert describe(np.arange(3.0)) == [0.0, 1.0, 2.0]
    assert describe(jax.random.key(3)) == {"key": [0, 3]}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (nn.relu, []),
        (MADE["optax"], []),
        (Net(8, nn.relu), [f"{__name__}.Net"]),
        (Add(1.0), [f"{__name__}.Add"]),
        ({"deep": [(models.from_module(Other, (3,), 2, head="out"),)]}, [f"{__name__}.Other"]),
        (jax.jit(own_loss), [f"{__name__}.own_loss"]),
        (nn.initializers.normal(0.5), ["jax._src.nn.initializers.normal.<locals>.init"]),
        (functools.partial(own_loss, y=1), [f"{__name__}.own_loss"]),
    ],
)  # fmt: skip
def test_own_code_is_found_at_any_depth(value, names):
    """Functions of libraries that have a state count too: a record does not describe it."""
    assert sorted({*own_code(describe(value))}) == names


REFUSED = {
    "array": srp.clocks.Trace(np.ones((30, 20))),
    "lambda": models.MLP((8, 8), 10, augment=lambda key, x: x),
    "transformation": srp.algorithms.FedAvg(MODEL, srp.Training(optax.sgd(0.1))),
    "function": models.LinearRegression((4,), augment=own_loss),
    "module": models.Split(
        (4,), 2, [models.Layer("out", nn.Einsum((4, 2), "ij,jk->ik"))]
    ),
    "key": {"key": [0, 3]},
    "class with a closure": class_around(2.0)(MODEL),
    "unknown class": {"part": "nowhere.Class"},
    "no class of the package": {"part": "fedjax_srp.algorithms.fedrep.Other"},
    "no module of the package": {"part": "fedjax_srp.no_such.Thing"},
    "no part": {"part": "fedjax_srp.results.history.History"},
    "another field": describe(srp.SGD()) | {"nesterov": True},
    "a field is missing": {"part": "fedjax_srp.participation.uniform.Uniform"},
    "out of range": describe(srp.SGD()) | {"momentum": 2.0},
    "nested too deeply": functools.reduce(lambda v, _: {"deep": v}, range(50_000), 7),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_cannot_be_rebuilt_are_refused_in_one_line(case):
    value = REFUSED[case]
    if not isinstance(value, dict):
        value = json.loads(json.dumps(describe(value)))
    with refused(
        r"cannot be rebuilt|in a function|is known|is not in|differ|must|nested"
    ):
        rebuild(value)


EVIL = [
    {"function": "os.system"},
    {"function": "builtins.eval"},
    {"function": "fedjax_srp.results.atomic.remove"},
    {"function": "optax.sgd.__call__"},
    {"function": "__import__('os').system('true')"},
    {"part": "os.system", "command": "true"},
    {"part": "antigravity.Part"},
    {"part": "this.Zen"},
    {"part": "fedjax_srp/../this.Zen"},
    {"part": "fedjax_srp..this.Zen"},
    {"part": ["fedjax_srp"]},
    {"part": None},
    {"part": "fedjax_srp" + 50_000 * ".a"},
    {"function": "fedjax_srp.models" + 50_000 * ".a"},
    {"function": "fedjax_srp.models.register"},
    {"function": "fedjax_srp.parts.options.checked_maker"},
    {"function": "optax.transforms._combining.chain"},
]


@pytest.mark.parametrize("record", EVIL, ids=lambda record: str(record)[:60])
def test_nothing_of_a_record_is_executed_and_no_other_module_is_imported(record):
    before = set(sys.modules)
    with refused("is known|is not in") as caught:
        rebuild({"deep": [record]})
    assert len(str(caught.value)) < 300
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


def test_the_functions_that_a_record_may_name_are_those_of_their_libraries():
    for library, names in description._FUNCTIONS.items():
        for name in names:
            found = getattr(importlib.import_module(library), name)
            assert rebuild(describe(found)) is found, name
    older = describe(srp.SGD(0.3))
    del older["weight_decay"]  # a missing field has its default
    assert rebuild(older) == srp.SGD(0.3)


IN_ANOTHER_PROCESS = """
import json, sys
from fedjax_srp.parts.description import rebuild
part = rebuild(json.loads(sys.argv[1]))
try:
    rebuild({"part": "fedjax_srp.data.records.X"})
except ValueError as error:
    assert "is known" in str(error), error
print(part.layer_names, "tensorflow_datasets" in sys.modules)
"""


def test_parts_of_the_package_are_known_to_a_process_that_has_not_imported_them():
    model = models.CNN((16, 16), 4)
    command = [
        sys.executable,
        "-c",
        IN_ANOTHER_PROCESS,
        json.dumps(jsonable(describe(model))),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{model.layer_names} False\n"
