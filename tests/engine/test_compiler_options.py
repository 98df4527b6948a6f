"""Compiler options that the package gives XLA."""

import jax
import numpy as np
import pytest
from reference.small import (
    CLOCK,
    KEY,
    NUM_CLASSES,
    NUM_FEATURES,
    Run,
    clients_of,
    federation,
    model,
)

import fedjax_srp as srp
from fedjax_srp.driver import programs as program
from fedjax_srp.xla import backend

DATA = federation(clients_of((4, 5, 6), (3, 3, 3)))
ALGORITHM = srp.algorithms.FedAvg(model())


def simulate():
    return srp.simulate(
        ALGORITHM, DATA, clock=CLOCK, num_rounds=2, key=KEY, devices=1, progress=False
    )


def test_options_are_for_cpus():
    assert backend.compiler_options("gpu") == backend.compiler_options("tpu") == {}
    assert backend.compiler_options("cpu")


def test_options_reach_the_compiler_and_are_part_of_the_key_of_programs(monkeypatch):
    simulate()
    monkeypatch.setattr(
        program, "compiler_options", lambda platform: {"no_such_option": 1}
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        simulate()


def test_options_for_cpus_change_no_bit(monkeypatch):
    told = simulate()
    monkeypatch.setattr(program, "compiler_options", lambda platform: {})
    for a, b in zip(
        jax.tree.leaves(told.server_state),
        jax.tree.leaves(simulate().server_state),
        strict=True,
    ):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_quickly_compiled_start_has_the_same_bits(monkeypatch):
    def start(level):
        monkeypatch.setattr(
            program,
            "options_for_one_run",
            lambda platform: {"xla_backend_optimization_level": level},
        )
        jax.clear_caches()
        program._jitted.cache_clear()
        network = srp.models.MLP(
            (NUM_FEATURES,), NUM_CLASSES, hidden=(64, 32)
        )  # wide enough for vectors
        run = Run(srp.algorithms.Ditto(network), DATA, srp.participation.Full())
        is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        leaves = jax.tree.leaves(run.host_state())
        return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]

    for a, b in zip(start(1), start(3), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_users_optimization_level_is_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert backend.options_for_one_run("cpu")
    assert not backend.options_for_one_run("gpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert not backend.options_for_one_run("cpu")
