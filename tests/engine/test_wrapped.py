"""An algorithm around another one that forwards all that is asked of it gives the bits of the inner one."""

import jax
import numpy as np
import pytest
from reference.small import (
    CLOCK,
    KEY,
    assert_same_bits,
    clients_of,
    federation,
    model,
    prepared,
)

import fedjax_srp as srp

DATA = federation(clients_of((4, 6, 3, 8), (3,) * 4))
OPTIONS = {
    "num_rounds": 2,
    "eval_every": 2,
    "devices": 1,
    "progress": False,
    "keep_clients": True,
}


@srp.part
class Wrapped(srp.FederatedAlgorithm):
    """Forwards everything; a codec or noise would change the phases."""

    inner: srp.FederatedAlgorithm

    @property
    def model(self):
        return self.inner.model

    @property
    def training(self):
        return self.inner.training

    def init(self, key, data):
        return self.inner.init(key, data)

    def init_client(self, key, server, examples):
        return self.inner.init_client(key, server, examples)

    def metrics(self, server, data):
        return self.inner.metrics(server, data)

    @property
    def phases(self):
        return self.inner.phases

    @property
    def start_phases(self):
        return self.inner.start_phases

    @property
    def gradient(self):
        return self.inner.gradient

    @property
    def charges(self):
        return self.inner.charges

    @property
    def evaluations(self):
        return self.inner.evaluations


def algorithm_of(name):
    training = srp.Training(srp.SGD(0.1), batch_size=3)
    return getattr(srp.algorithms, name)(model(hidden=(3,)), training, fine_tune_epochs=1)


BY_CRITERION = srp.participation.StatisticalAccuracy(initial=2)  # asks for the gradient


@pytest.mark.short("FedRep", "FedGATE")
@pytest.mark.parametrize("name", ["FedRep", "SCAFFOLD", "FedGATE", "FedAMP"])
def test_a_wrapped_algorithm_runs_as_the_inner_one(name):
    inner = algorithm_of(name)
    policy = BY_CRITERION if inner.gradient is not None else srp.participation.Uniform(3)
    options = OPTIONS | {"participation": policy, "clock": CLOCK}
    alone, wrapped = (
        srp.simulate(each, DATA, key=KEY, **options) for each in (inner, Wrapped(inner))
    )
    assert wrapped.name.startswith("wrapped")
    for field in (
        "server_state",
        "client_states",
        "accuracies",
        "metrics",
        "compute_time",
    ):
        assert_same_bits(getattr(wrapped, field), getattr(alone, field))
    assert (wrapped.bytes_up, wrapped.bytes_down) == (alone.bytes_up, alone.bytes_down)


@pytest.mark.parametrize("name", ["HeteroFL", "FedBuff", "FedAMP"])
def test_a_wrapped_algorithm_costs_what_the_inner_one_costs(name):
    inner = algorithm_of(name)
    clock = srp.clocks.Devices(1e9, 1e6, 1e6)
    costs = [
        prepared(each, DATA, clock=clock, devices=1).costs
        for each in (inner, Wrapped(inner))
    ]
    jax.tree.map(np.testing.assert_array_equal, *costs)


def test_an_instance_has_a_gradient_or_none():
    """FedAT inherits one and takes it back; a wrapper has that of its inner algorithm."""
    for name, has_gradient in (("FedProx", True), ("FedAT", False)):
        inner = algorithm_of(name)
        assert (
            (inner.gradient is not None)
            == (Wrapped(inner).gradient is not None)
            == has_gradient
        )
    with pytest.raises(ValueError, match="algorithm 'wrapped' has no `gradient`"):
        srp.simulate(
            Wrapped(algorithm_of("FedAT")),
            DATA,
            key=KEY,
            participation=BY_CRITERION,
            **OPTIONS,
        )
