"""Descriptions of runs: a history describes its method, which runs again to the same bits."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import optax
import pytest
from reference.small import KEY, assert_same_bits

import fedjax_srp as srp
from fedjax_srp import participation
from fedjax_srp.driver.record import data_checksum
from fedjax_srp.parts.description import describe
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.records import identity

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
    assert config["clock"]["distribution"] == {
        "part": "fedjax_srp.clocks.distributions.Constant",
        "value": 2.0,
    }
    assert config["data"]["options"]["classes_per_client"] == 5
    assert config["data"]["num_clients"] == 4
    assert config["schedule"]["num_rounds"] == 1
    assert config["program"] is None
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
    assert config_other["method"]["participation"]["k"] == 2
    again = srp.data.load("digits", num_clients=4, classes_per_client=5)
    checksums = [
        made["data"]["checksum"]
        for made in (config, config_other, config_of(from_python, again))
    ]
    assert checksums[0] == checksums[2] != checksums[1]


def test_the_record_tells_what_was_asked_for_from_the_machine(data):
    made = fedavg()
    one = config_of(made, data)
    other = config_of(made, data, chunk_size=1)
    assert one["machine"] != other["machine"]
    assert identity(one) == identity(other)
    assert identity(one) == identity(config_of(made, data, num_rounds=2))
    assert identity(one) != identity(config_of(made, data, eval_every=2))
    assert identity(one) != identity(config_of(fedavg(0.2), data))
    with jax.enable_x64(True):
        assert config_of(made, data)["jax"] == {"jax_enable_x64": True}


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


@pytest.mark.usefixtures("no_rounds")
def test_runs_of_own_code_record_the_hash_of_their_program(data):
    made = [
        srp.algorithms.FedAvg(MODEL, srp.Training(optimizer))
        for optimizer in (optax.sgd(0.1), optax.sgd(0.2), srp.SGD(0.1))
    ]
    one, other, known = (config_of(algorithm, data) for algorithm in made)
    assert one["method"] == other["method"]
    assert one["program"]["rounds"] != other["program"]["rounds"]
    assert known["program"] is None
    assert "unknown" not in one["program"]


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
    assert config["program"]["code"] == [f"{__name__}.Host"]


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
