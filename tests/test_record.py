"""Every part says what made it, and a history says it of all of its parts."""

import functools
import inspect
import json

import jax
import numpy as np
import optax
import pytest

import fedjax_srp as srp
from fedjax_srp.methods.table import POLICIES
from fedjax_srp.parts import detach
from fedjax_srp.record import Options, describe, unknowns

MODEL = srp.models.mlp((8, 8), num_classes=10, hidden=(4,))
MADE = {
    **{
        name: functools.partial(getattr(srp.algorithms, name), MODEL)
        for name in srp.algorithms.__all__
        if "_" not in name and name != "sgd"
    },
    "sgd": lambda: srp.algorithms.sgd(0.1, momentum=0.5),
    "fixed": lambda: srp.clocks.fixed(srp.clocks.exponential(2.0), communication=3),
    "dynamic": lambda: srp.clocks.dynamic(srp.clocks.exponential(srp.clocks.uniform(0.1, 1))),
    "trace": lambda: srp.clocks.trace(np.ones((3, 20))),
    "doubling": lambda: srp.participation.doubling(initial=5, rounds_per_stage=[1, 2]),
    "uniform": lambda: srp.participation.uniform(3),
    "mlp": lambda: MODEL,
    "augmented": lambda: srp.models.augmented(MODEL, srp.models.crop_and_flip(padding=1)),
}


@pytest.mark.parametrize("name", MADE)
def test_every_argument_is_written_down_in_plain_words(name):
    options = MADE[name]().options
    assert json.loads(json.dumps(options)) == options
    assert not list(unknowns(options))
    rooms = (srp.algorithms, srp.participation, srp.clocks, srp.models)
    factory = next((getattr(room, name) for room in rooms if name in room.__all__ and name != "augmented"), None)
    if factory is not None:
        assert set(inspect.signature(factory).parameters) <= set(options)


def test_values_are_those_given_and_the_defaults():
    assert MADE["fixed"]().options == {
        "distribution": {"name": "exponential", "rate": 2.0},
        "work": 1.0,
        "ordered": False,
        "communication": 3,
    }
    fedrep = srp.algorithms.fedrep(MODEL, srp.algorithms.sgd(0.3)).options
    assert (fedrep["optimizer"], fedrep["head_epochs"]) == (
        {"name": "sgd", "learning_rate": 0.3, "momentum": 0.0, "weight_decay": 0.0},
        10,
    )
    assert (fedrep["model"]["hidden"], fedrep["model"]["cut"]) == ([4], "out")
    trace = MADE["trace"]().options["times"]
    assert trace["shape"] == [3, 20]
    last = np.ones((3, 20))
    last[-1, -1] = 2.0  # every entry counts
    assert trace != srp.clocks.trace(last).options["times"]


def test_a_model_knows_where_it_is_cut():
    assert MODEL.recut("fc1").recut(None).options["cut"] is None
    augmented = MADE["augmented"]().cut_above(2)
    assert augmented.options["cut"] == "fc1"
    assert augmented.options["augment"] == {"name": "crop_and_flip", "padding": 1, "fill": 0.0}


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        (optax.adam(0.1), False),
        (lambda x: x, False),
        (functools.partial(np.mean, axis=0), True),
        (np.float32(0.5), True),
        (jax.random.key(3), True),
        (jax.numpy.float32, True),
        (MODEL._replace(options=None), False),
    ],
)
def test_what_cannot_say_what_made_it_is_named(value, is_known):
    assert (not list(unknowns(describe({"given": [value]})))) == is_known


def test_options_are_no_part_of_a_program():
    one, other = (srp.clocks.fixed(srp.clocks.exponential(rate)) for rate in (1.0, 2.0))
    assert detach(one)[0] == detach(other)[0]
    assert hash(detach(one)[0]) == hash(detach(other)[0])
    assert jax.tree.leaves(Options(a=1.0)) == []
    for name, policy in POLICIES.items():
        arguments = {"k": 2} if "k" in inspect.signature(policy).parameters else {}
        assert policy(**arguments) is policy(**arguments), name


@pytest.fixture(scope="module")
def data():
    return srp.data.load("digits", num_clients=4, classes_per_client=5)


def run(algorithm, data, **more):
    options = {"num_rounds": 1, "eval_every": 1, "progress": False, "devices": 1, "evaluations": ()} | more
    return srp.simulate(algorithm, data, key=jax.random.key(0), **options).config


def test_a_history_says_what_made_it(data):
    method = srp.methods.get("srpfl", dataset=data, hidden=(4,), initial=2, learning_rate=0.05, local_epochs=1)
    config = run(method, data, clock=srp.clocks.fixed(srp.clocks.constant(2.0)))
    assert config == json.loads(json.dumps(config))
    options = config["options"]
    assert [options[o] for o in ("learning_rate", "initial", "hidden", "participation")] == [0.05, 2, [4], "doubling"]
    assert config["clock_options"]["distribution"] == {"name": "constant", "value": 2.0}
    assert config["dataset_options"]["classes_per_client"] == 5
    assert config["unknown"] == []
    other = srp.data.load("digits", num_clients=4, classes_per_client=5, seed=1)
    from_python = srp.algorithms.fedavg(MODEL, srp.algorithms.sgd(0.1), local_epochs=1)
    config_other = run(from_python, other, participation=srp.participation.uniform(2))
    assert config_other["options"]["optimizer"]["learning_rate"] == 0.1
    assert config_other["options"]["k"] == 2
    assert config_other["data_checksum"] != config["data_checksum"]
    again = srp.data.load("digits", num_clients=4, classes_per_client=5)
    assert run(from_python, again)["data_checksum"] == config["data_checksum"]


def test_equal_names_of_algorithm_and_participation_are_told_apart(data):
    own = srp.algorithms.fedavg(MODEL, srp.algorithms.sgd(0.1), local_epochs=1)._replace(options={"k": 2})
    for k, expected in ((1, {"k": 2, "fastest.k": 1}), (2, {"k": 2})):
        options = run(own, data, participation=srp.participation.fastest(k))["options"]
        assert {name: value for name, value in options.items() if name.endswith("k")} == expected


def test_parts_of_ones_own_are_unknown_until_they_say(data):
    own = srp.algorithms.fedavg(MODEL, optax.sgd(0.1), local_epochs=1)
    (optimizer,) = run(own, data)["unknown"]
    assert "GradientTransformation" in optimizer
    assert run(own._replace(name="mine", options=None), data)["unknown"] == ["mine"]
    assert run(own._replace(name="mine", options={"rate": 0.1}), data)["unknown"] == []


def test_seeds_with_values_of_their_own_say_which(data):
    method = srp.methods.get("fedavg", dataset=data, hidden=(4,), local_epochs=1)
    keys, rates = jax.random.split(jax.random.key(0), 2), [0.125, 0.25]
    histories = srp.simulate_seeds(
        method, data, keys=keys, values={"learning_rate": rates}, num_rounds=1, progress=False, devices=1
    )
    assert [history.config["options"]["learning_rate"] for history in histories] == rates
