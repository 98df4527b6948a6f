"""Descriptions of runs: a history describes its method, which runs again to the same bits."""

import json

import jax
import optax
import pytest
from reference.small import KEY, assert_same_bits

import fedjax_srp as srp
from fedjax_srp.parts.description import describe
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.records import identity

MODEL = srp.models.MLP((8, 8), num_classes=10, hidden=(4,))


@pytest.fixture(scope="module")
def data():
    return srp.data.load("digits", num_clients=4, classes_per_client=5)


def fedavg(rate=0.1):
    return srp.algorithms.FedAvg(MODEL, srp.Training(srp.SGD(rate)))


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
    distribution = {"part": "fedjax_srp.clocks.distributions.Constant", "value": 2.0}
    assert config["clock"]["distribution"] == distribution
    assert config["data"]["options"]["classes_per_client"] == 5
    assert config["data"]["num_clients"] == 4
    assert config["schedule"]["num_rounds"] == 1
    assert config["program"] is None
    described = {name: describe(getattr(method, name)) for name in ("algorithm", "participation")}  # fmt: skip
    assert config["method"] == jsonable({"name": "srpfl"} | described)
    same, other = (
        config_of(fedavg(), srp.data.load("digits", 4, classes_per_client=5, seed=seed))
        for seed in (0, 1)
    )
    checksum = config["data"]["checksum"]
    assert same["data"]["checksum"] == checksum != other["data"]["checksum"]


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
    given = {"initial": 2, "rounds_per_stage": 1, "head_epochs": 1, "momentum": 0.5}
    method = srp.methods.get("srpfl", dataset=data, hidden=(4,), **given)
    options = {"num_rounds": 2, "key": KEY, "progress": False, "devices": 1}
    first = srp.simulate(method, data, **options)
    again = srp.simulate(first.method, data, **options)
    assert first.method == method
    assert again.compile_seconds == 0
    found = ((run.server_state, dict(run.accuracies)) for run in (again, first))
    assert_same_bits(*found)


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
