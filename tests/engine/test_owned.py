"""Data sharded by client: the examples of each device, and equal results."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    NUM_CLASSES,
    NUM_FEATURES,
    assert_close,
    assert_same_bits,
    changed,
    model,
)

import fedjax_srp as srp
from fedjax_srp.driver.programs import program
from fedjax_srp.rounds.client_data import OwnedData, place_data
from fedjax_srp.rounds.sharding import lay_out

COUNTS, TESTS = (1, 9, 4, 7, 2, 5, 3), (2, 1, 3, 2, 2, 1, 4)
KEY = jax.random.key(5)
COMPILED_QUICKLY = os.environ["XLA_FLAGS"].rfind("emitters=false") > os.environ[
    "XLA_FLAGS"
].rfind("emitters=true")


def pixels(counts=COUNTS, tests=TESTS):
    """Return unequal clients with uint8 inputs in random order."""
    rng = np.random.default_rng(1)

    def deal(sizes):
        order = rng.permutation(sum(sizes) + 2)  # two examples belong to no client
        x = rng.integers(0, 256, (len(order), NUM_FEATURES), dtype=np.uint8)
        return (
            x,
            rng.integers(0, NUM_CLASSES, len(order)),
            np.split(order, np.cumsum(sizes))[: len(sizes)],
        )

    (x, y, train), (x_test, y_test, test) = deal(counts), deal(tests)
    return srp.data.from_arrays(
        x,
        y,
        x_test,
        y_test,
        train_indices=train,
        test_indices=test,
        num_classes=NUM_CLASSES,
    )


DATA = pixels()
ALGORITHMS = {
    "fedavg": srp.algorithms.FedAvg(model(), srp.Training(srp.SGD(0.2), batch_size=4)),
    "fedrep": srp.algorithms.FedRep(
        model(hidden=(4,)),
        srp.Training(srp.SGD(0.2, momentum=0.5), batch_size=4),
        head_epochs=2,
    ),
}


def numbers(history):
    tables = history.accuracies, history.metrics, history.compute_time, history.test_count
    return *tables, history.server_state


def assert_unchanged(sharded, replicated):
    """Compare closely, and bit for bit if programs are compiled as users do (make test-long)."""
    assert_same_bits(sharded[2:4], replicated[2:4])  # times and test points
    assert_close(sharded, replicated, 1e-5)
    if not COMPILED_QUICKLY:
        assert_same_bits(sharded, replicated)


@pytest.mark.short("fedavg-3")
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sharded_data_change_nothing(name, devices):
    options = {
        "num_rounds": 4,
        "eval_every": 2,
        "key": KEY,
        "devices": devices,
        "chunk_size": 1,
        "progress": False,
    }
    options |= {
        "participation": srp.participation.Doubling(3, 2),
        "evaluations": "fine_tune",
    }  # on both kinds of data
    replicated = srp.simulate(ALGORITHMS[name], DATA, **options)
    sharded = srp.simulate(ALGORITHMS[name], DATA, shard_data=True, **options)
    assert sharded.config["machine"]["shard_data"]
    assert_unchanged(numbers(sharded), numbers(replicated))


@pytest.mark.long
@pytest.mark.parametrize("devices", [2, 3])
def test_seeds_share_the_sharded_data(devices):
    options = {
        "num_rounds": 2,
        "eval_every": 2,
        "devices": devices,
        "chunk_size": 2,
        "progress": False,
    }
    options |= {
        "participation": srp.participation.Fastest(4),
        "keys": jax.random.split(KEY, 2),
    }
    replicated, sharded = (
        srp.simulate_seeds(ALGORITHMS["fedavg"], DATA, shard_data=shard, **options)
        for shard in (False, True)
    )
    for one, other in zip(replicated, sharded, strict=True):
        assert_unchanged(numbers(other), numbers(one))
    with pytest.raises(AssertionError):
        assert_close(sharded[0].server_state, sharded[1].server_state, 1e-2)


def test_evaluate_takes_sharded_data():
    algorithm, options = (
        ALGORITHMS["fedrep"],
        {"key": KEY, "evaluations": "all", "devices": 3},
    )
    server = algorithm.init(KEY, DATA)
    replicated = srp.evaluate(algorithm, DATA, server, **options)
    assert_same_bits(
        srp.evaluate(algorithm, DATA, server, shard_data=True, **options), replicated
    )


@pytest.mark.short("2")
@pytest.mark.parametrize("devices", [2, 3])
def test_a_device_holds_the_examples_of_its_own_clients(devices):
    layout = lay_out(devices, 1, DATA.num_clients)
    placed = place_data(layout, DATA, shard_data=True)
    assert isinstance(placed, OwnedData)
    assert placed.num_clients == 7
    for name in ("x_train", "x_test"):
        assert getattr(placed.own, name).dtype == jnp.uint8

    shards = placed.own.x_train.addressable_shards
    owners = np.arange(7) % devices
    most = max(np.bincount(owners, np.asarray(DATA.train_counts)))
    assert [shard.data.shape for shard in shards] == [(most, NUM_FEATURES)] * devices


def test_images_move_as_bytes():
    layout = lay_out(4, 2, DATA.num_clients)
    policy = srp.participation.Full()
    clock = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
    compiled = program(ALGORITHMS["fedavg"], policy, clock, (), layout)
    root, data = (
        jax.device_put(KEY, layout.sharding()),
        place_data(layout, DATA, shard_data=True),
    )
    start = compiled.start(root, data)
    compiled.segment(1, start.state, root, data)
    (text,) = [
        done.as_text()
        for function, done in compiled.compiled.items()
        if function.name == "rounds"
    ]  # pyright: ignore
    moved = [line for line in text.splitlines() if "reduce-scatter(" in line]
    inputs = [
        line for line in moved if f"9,{NUM_FEATURES}]" in line
    ]  # 9 examples at most
    assert inputs
    assert all(" u8[" in line for line in inputs), inputs


def test_data_that_cannot_be_sharded_are_refused():
    task = srp.data.linear_task(KEY, 8, 6, 2)
    linear = srp.algorithms.LinearFedAvg(task, step_size=0.1, local_steps=1)
    with pytest.raises(ValueError, match="shard_data=True with data of type LinearTask"):
        srp.simulate(linear, task, num_rounds=1, key=KEY, shard_data=True)
    looks = changed(
        ALGORITHMS["fedavg"],
        metrics=lambda server, data: {"y": data.train_client(jnp.int32(0)).y[0]},
    )
    with pytest.raises(ValueError, match="shard_data=True: `init` and `metrics`"):
        srp.simulate(looks, DATA, num_rounds=1, key=KEY, shard_data=True, progress=False)


def test_data_may_be_numpy_arrays():
    on_host = jax.tree.map(np.asarray, DATA)
    options = {
        "num_rounds": 1,
        "key": KEY,
        "devices": 3,
        "progress": False,
        "shard_data": True,
    }
    there, here = (
        srp.simulate(ALGORITHMS["fedavg"], data, **options) for data in (on_host, DATA)
    )
    assert_same_bits(numbers(there), numbers(here))
