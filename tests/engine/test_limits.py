"""Limits: switch the new thing off and get the old one back."""

import functools

import jax
import numpy as np
import pytest
from reference.small import (
    NUM_CLASSES,
    NUM_FEATURES,
    Run,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    model,
)

import fedjax_srp as srp

COUNTS = (2, 9, 4, 7, 1, 5, 8)
CLIENTS = clients_of(COUNTS, (3,) * 7)
DATA = federation(CLIENTS)
RANDOM_CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(0.2, 1.0)))


@functools.cache
def three_rounds(name, participation=None, **options):
    """(states, infos) of a method of the registry, or of its algorithm under another policy."""
    options = {"hidden": (5,), "batch_size": 4, "head_epochs": 2, "learning_rate": 0.2} | options
    method = srp.methods.get(name, dataset=DATA, **options)
    run = Run(method.algorithm, DATA, participation or method.participation, RANDOM_CLOCK, chunk_size=3)
    infos, states = [], []
    for _ in range(3):
        infos.append(run.rounds().rounds)
        states.append(run.host_state())
    return states, infos


@pytest.mark.short("srpfl_from_everybody")
@pytest.mark.parametrize(
    ("name", "options"),
    [("srpfl", {"initial": 7}), ("fedrep", {"participation": srp.participation.Uniform(7)})],
    ids=["srpfl_from_everybody", "uniform_of_everybody"],
)
def test_everybody_from_the_first_round_is_fedrep(name, options):
    states, infos = three_rounds(name, **options)
    full_states, full_infos = three_rounds("fedrep")
    assert [int(info.cohort_size[0]) for info in infos] == [7, 7, 7]
    assert_same_bits(infos, full_infos)  # sizes, stages and times
    for state, full_state in zip(states, full_states, strict=True):
        assert_same_bits((state.server, state.clients), (full_state.server, full_state.clients))


def test_srpfl_with_fewer_is_not_fedrep():
    states, infos = three_rounds("srpfl", initial=3, rounds_per_stage=1)
    assert [int(info.cohort_size[0]) for info in infos] == [3, 6, 7]
    full_states, full_infos = three_rounds("fedrep")
    assert float(infos[0].compute_time[0]) < float(full_infos[0].compute_time[0])
    assert float(infos[2].compute_time[0]) == float(full_infos[2].compute_time[0])
    with pytest.raises(AssertionError):
        assert_close(states[0].server, full_states[0].server, 1e-3)


def test_gradient_descent_on_one_layer_in_closed_form():
    """From zero logits the first gradient is X^T (1/classes - one hot) / count: no network code is involved."""
    client = CLIENTS[1]
    algorithm = srp.algorithms.FedAvg(model(hidden=()), srp.Training(srp.SGD(0.7), batch_size=len(client.y)))
    run = Run(algorithm, federation([client]), srp.participation.Full())
    state = run.host_state()
    zero = jax.tree.map(np.zeros_like, state.server)
    run.place(state._replace(server=zero)).rounds()
    delta = (1 / NUM_CLASSES - np.eye(NUM_CLASSES)[client.y]) / len(client.y)
    layer = run.host_state().server.params.head["out"]
    assert layer["kernel"].shape == (NUM_FEATURES, NUM_CLASSES)
    np.testing.assert_allclose(layer["kernel"], -0.7 * client.x.T @ delta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer["bias"], -0.7 * delta.sum(axis=0), rtol=1e-5, atol=1e-6)
