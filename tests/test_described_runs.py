"""Descriptions of runs: a history describes its method, which runs again to the same bits."""

import json

import jax
import optax
import pytest
from reference.small import KEY, assert_same_bits, prepared

import fedjax_srp as srp
from fedjax_srp import models, participation
from fedjax_srp.parts.description import describe
from fedjax_srp.results.json_files import jsonable

MODEL = srp.models.MLP((8, 8), num_classes=10, hidden=(4,))


@pytest.fixture(scope="module")
def data():
    return srp.data.load("digits", num_clients=4, classes_per_client=5)


def config_of(algorithm, data, **more):
    options = {
        "num_rounds": 1,
        "eval_every": 1,
        "progress": False,
        "devices": 1,
        "evaluations": (),
    } | more
    return srp.simulate(algorithm, data, key=jax.random.key(0), **options).config


@pytest.mark.usefixtures("no_rounds")
def test_a_history_describes_its_run(data):
    given = {"initial": 2, "learning_rate": 0.05, "head_epochs": 1}
    method = srp.methods.get("srpfl", dataset=data, hidden=(4,), **given)
    config = config_of(method, data, clock=srp.clocks.Fixed(srp.clocks.Constant(2.0)))
    assert config == json.loads(json.dumps(config))
    expected = given | {"hidden": [4], "participation": "doubling", "cut": "out"}
    assert {name: config["options"][name] for name in expected} == expected
    distribution = {"part": "fedjax_srp.clocks.distributions.Constant", "value": 2.0}
    assert config["clock_options"]["distribution"] == distribution
    assert config["dataset_options"]["classes_per_client"] == 5
    assert config["unknown"] == []
    described = {name: describe(getattr(method, name)) for name in ("algorithm", "participation")}  # fmt: skip
    assert config["method"] == jsonable({"name": "srpfl"} | described)
    checksums = [
        config_of(fedavg(), srp.data.load("digits", 4, classes_per_client=5, seed=seed))
        for seed in (0, 1)
    ]
    same, other = (found["data_checksum"] for found in checksums)
    assert same == config["data_checksum"] != other


def test_a_method_of_a_record_runs_once_more_to_the_same_bits(data):
    given = {"initial": 2, "rounds_per_stage": 1, "head_epochs": 1, "momentum": 0.5}
    method = srp.methods.get("srpfl", dataset=data, hidden=(4,), **given)
    options = {"num_rounds": 2, "key": KEY, "progress": False, "devices": 1}
    first = srp.simulate(method, data, **options)
    again = srp.simulate(first.method, data, **options)
    assert first.method == method
    assert again.compile_seconds == 0
    found = ((run.server_state, dict(run.accuracies)) for run in (again, first))
    assert_same_bits(*found)


def fedavg(*optimizer, model=MODEL, **fields):
    return srp.algorithms.FedAvg(
        model, srp.Training(srp.SGD(*optimizer or (0.1,))), **fields
    )


def of_optax(rate):
    return srp.optimizer(optax.sgd, learning_rate=rate)


DIFFERENCES = {
    "rate": ({}, {"training": srp.Training(srp.SGD(0.2))}, "learning_rate"),
    "momentum": ({}, {"training": srp.Training(srp.SGD(0.01, 0.5))}, "momentum"),
    "epochs": ({}, {"training": srp.Training(epochs=2)}, "epochs"),
    "tuning": ({}, {"fine_tune_epochs": 1}, "fine_tune_epochs"),
    "width": ({}, {"model": models.MLP((8, 8), 10, hidden=(5,))}, "hidden"),
    "cut": ({}, {"model": MODEL.recut("fc1")}, "cut"),
    "optax": (
        {"training": srp.Training(of_optax(0.1))},
        {"training": srp.Training(of_optax(0.2))},
        "training.optimizer.floats",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_options_differ_between_runs(case, data):
    *changes, name = DIFFERENCES[case]
    algorithms = [
        srp.algorithms.FedAvg(**{"model": MODEL} | change) for change in changes
    ]
    one, other = (prepared(algorithm, data).options() for algorithm in algorithms)
    differ = {option for option in one | other if one.get(option) != other.get(option)}
    assert differ == {name}


@srp.part
class WithK(srp.algorithms.FedAvg):
    """Algorithm with an option that a policy has too."""

    k: int = 2


def test_equal_names_of_algorithm_and_participation_are_both_recorded(data):
    policy = participation.Fastest(1)
    options = prepared(WithK(MODEL), data, participation=policy).options()
    assert (options["k"], options["fastest.k"]) == (2, 1)


@pytest.mark.usefixtures("no_rounds")
def test_runs_of_own_code_record_the_hash_of_their_program(data):
    made = [
        srp.algorithms.FedAvg(MODEL, srp.Training(optimizer))
        for optimizer in (optax.sgd(0.1), optax.sgd(0.2), srp.SGD(0.1))
    ]
    one, other, known = (config_of(algorithm, data) for algorithm in made)
    assert one["method"] == other["method"]
    assert one["program"]["rounds"] != other["program"]["rounds"]
    assert "program" not in known
    assert one["unknown"] == known["unknown"] == []


@srp.part
class Host(srp.algorithms.FedAvg):
    """Algorithm whose server calls the host."""

    def server(self, key, server, mean, context):
        jax.debug.print("{}", context.round)
        return super().server(key, server, mean, context)


@pytest.mark.usefixtures("no_rounds")
def test_a_program_that_calls_the_host_is_unknown(data):
    config = config_of(Host(MODEL), data)
    assert "host" in config["program"]["unknown"]
    assert config["unknown"] == [f"{__name__}.Host"]
