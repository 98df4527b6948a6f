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
