"""Descriptions of runs: a history describes its method, which runs again to the same bits."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import optax
import pytest
from reference.small import KEY, assert_same_bits, prepared

import fedjax_srp as srp
from fedjax_srp import models, participation
from fedjax_srp.driver.record import data_checksum
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
    method = srp.methods.get(
        "srpfl", dataset=data, hidden=(4,), initial=2, learning_rate=0.05, head_epochs=1
    )
    config = config_of(method, data, clock=srp.clocks.Fixed(srp.clocks.Constant(2.0)))
    assert config == json.loads(json.dumps(config))
    options = config["options"]
    assert [
        options[o] for o in ("learning_rate", "initial", "hidden", "participation")
    ] == [0.05, 2, [4], "doubling"]
    assert (options["model"], options["epochs"], options["cut"]) == ("mlp", 1, "out")
    assert config["clock_options"]["distribution"] == {
        "part": "fedjax_srp.clocks.distributions.Constant",
        "value": 2.0,
    }
    assert config["dataset_options"]["classes_per_client"] == 5
    assert config["unknown"] == []
    assert config["method"] == jsonable(
        {
            "name": "srpfl",
            "algorithm": describe(method.algorithm),
            "participation": describe(method.participation),
        }
    )
    other = srp.data.load("digits", num_clients=4, classes_per_client=5, seed=1)
    from_python = srp.algorithms.FedAvg(MODEL, srp.Training(srp.SGD(0.1)))
    config_other = config_of(from_python, other, participation=participation.Uniform(2))
    assert config_other["options"]["learning_rate"] == 0.1
    assert config_other["options"]["k"] == 2
    assert config_other["data_checksum"] != config["data_checksum"]
    again = srp.data.load("digits", num_clients=4, classes_per_client=5)
    assert config_of(from_python, again)["data_checksum"] == config["data_checksum"]


def test_a_method_of_a_record_runs_once_more_to_the_same_bits(data):
    method = srp.methods.get(
        "srpfl",
        dataset=data,
        hidden=(4,),
        initial=2,
        rounds_per_stage=1,
        head_epochs=1,
        momentum=0.5,
    )
    options = {"num_rounds": 2, "key": KEY, "progress": False, "devices": 1}
    first = srp.simulate(method, data, **options)
    again = srp.simulate(first.method, data, **options)
    assert first.method == method
    assert again.compile_seconds == 0
    assert_same_bits(
        (again.server_state, dict(again.accuracies)),
        (first.server_state, dict(first.accuracies)),
    )


def fedavg(*optimizer, model=MODEL, **fields):
    return srp.algorithms.FedAvg(
        model, srp.Training(srp.SGD(*optimizer or (0.1,))), **fields
    )


def options_of_run(algorithm, data, **request):
    return prepared(algorithm, data, **request).options()


DIFFERENCES = {
    "rate": (fedavg(0.2), "learning_rate"),
    "momentum": (fedavg(0.1, 0.5), "momentum"),
    "epochs": (
        srp.algorithms.FedAvg(MODEL, srp.Training(srp.SGD(0.1), epochs=2)),
        "epochs",
    ),
    "tuning": (fedavg(fine_tune_epochs=1), "fine_tune_epochs"),
    "width": (fedavg(model=models.MLP((8, 8), 10, hidden=(5,))), "hidden"),
    "cut": (fedavg(model=MODEL.recut("fc1")), "cut"),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_options_differ_between_runs(case, data):
    algorithm, name = DIFFERENCES[case]
    one, other = (options_of_run(made, data) for made in (fedavg(), algorithm))
    assert {option for option in one | other if one.get(option) != other.get(option)} == {
        name
    }


def test_options_show_another_optimizer(data):
    one, other = (
        options_of_run(
            srp.algorithms.FedAvg(
                MODEL, srp.Training(srp.optimizer(optax.sgd, learning_rate=rate))
            ),
            data,
        )
        for rate in (0.1, 0.2)
    )
    (name,) = [option for option in one if one[option] != other[option]]
    assert (one[name], other[name]) == ({"learning_rate": 0.1}, {"learning_rate": 0.2})


@srp.part
class WithK(srp.algorithms.FedAvg):
    """Algorithm with an option that a policy has too."""

    k: int = 2


def test_equal_names_of_algorithm_and_participation_are_both_recorded(data):
    for k, expected in ((1, {"k": 2, "fastest.k": 1}), (2, {"k": 2})):
        options = options_of_run(
            WithK(MODEL), data, participation=participation.Fastest(k)
        )
        assert {
            name: value for name, value in options.items() if name.endswith("k")
        } == expected


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


@dataclasses.dataclass
class Shifted:
    """Data that call others equal, and that may get other arrays."""

    shift: jax.Array

    def __eq__(self, other):
        return isinstance(other, Shifted)

    def __hash__(self):
        return 0


def test_checksums_are_of_the_arrays_that_data_have_now():
    jax.tree_util.register_dataclass(Shifted, ["shift"], [])
    one, other = (Shifted(jnp.full(3, value)) for value in (1.0, 2.0))
    checksums = [data_checksum(one), data_checksum(other)]
    one.shift = other.shift
    assert checksums[0] != checksums[1] == data_checksum(one)
