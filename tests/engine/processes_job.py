"""Runs of `test_processes`, importable by the processes that share them."""

import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp import ClientOutput

DEVICES_PER_PROCESS = 2
NUM_PROCESSES = 2


def runs(folder, shard_data):
    """Return histories by name, and scores of `evaluate`. FedPer compiles once, the rest is small."""
    from engine.checkpoint_job import (  # makes arrays: after `initialize`
        ALGORITHM,
        CLOCK,
        DATA,
        POLICY,
    )
    from reference.small import algorithm_of, numbers

    key = jax.random.key(11)
    options = {
        "participation": POLICY,
        "clock": CLOCK,
        "num_rounds": 4,
        "eval_every": 2,
        "chunk_size": 1,
    }
    options |= {"shard_data": shard_data}
    whole = srp.simulate(ALGORITHM, DATA, key=key, **options)
    srp.simulate(
        ALGORITHM,
        DATA,
        key=key,
        checkpoint_dir=folder / "[check]point",
        **options | {"num_rounds": 2},
    )
    continued = srp.simulate(
        ALGORITHM, DATA, key=key, checkpoint_dir=folder / "[check]point", **options
    )

    def client(key, broadcast, state, value, context):
        return ClientOutput(
            value + broadcast + jax.random.normal(key), state + value, value**2
        )

    init_client = lambda key, server, value: jax.random.normal(key)
    evaluations = {
        "state": lambda key, server, state, value: lambda test: server * state + value
    }
    small = algorithm_of(client, init_client=init_client, evaluations=evaluations)
    data = numbers(3.0, -1.0, 4.0, 1.5, -5.0, 9.0)
    options = {
        "participation": srp.participation.Fastest(5),
        "num_rounds": 3,
        "progress": False,
    }
    first, second = srp.simulate_seeds(
        small, data, keys=jax.random.split(key, 2), **options
    )
    scores = srp.evaluate(small, data, first.server_state, key=key)["state"]
    return {
        "whole": whole,
        "continued": continued,
        "seed_0": first,
        "seed_1": second,
    }, scores


def numbers(history):
    """Return the values of a history that must not depend on processes, by name."""
    leaves = jax.tree.leaves(history.server_state)
    tables = {
        name: getattr(history, name)
        for name in ("round", "stage", "cohort_size", "compute_time", "client_time")
    }
    return (
        tables
        | history.accuracies
        | {f"server_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    )


def main():
    port, index, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    jax.config.update("jax_num_cpu_devices", DEVICES_PER_PROCESS)
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        NUM_PROCESSES,
        index,
        initialization_timeout=60,
        heartbeat_timeout_seconds=60,
    )
    histories, scores = runs(folder, shard_data=True)
    for error, wrong in WRONG.items():
        with pytest.raises(ValueError, match=error):
            wrong(index)
    flat = {
        f"{run}/{name}": value
        for run, h in histories.items()
        for name, value in numbers(h).items()
    }
    np.savez(folder / f"process_{index}.npz", scores=scores, **flat)
    if index == 0:
        histories["whole"].save(folder / "saved")


def _simulate(**options):
    from engine.checkpoint_job import ALGORITHM, DATA

    return srp.simulate(
        ALGORITHM,
        DATA,
        num_rounds=1,
        **{"key": jax.random.key(0), "progress": False} | options,
    )


WRONG = {
    "key differs between the processes": lambda index: _simulate(
        key=jax.random.key(index)
    ),
    "devices belong to 1 of 2 processes": lambda index: _simulate(
        devices=jax.devices()[2 * (1 - index) :][:1]
    ),
    "checkpoint_dir with devices of one of 2 processes": lambda index: _simulate(
        devices=jax.local_devices(), checkpoint_dir="unused"
    ),
}

if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
    main()
