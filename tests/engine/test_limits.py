"""Limits: switch the new thing off and get the old one back."""

import functools

import jax
import numpy as np
import pytest
from reference import mlp
from reference.small import (
    NUM_CLASSES,
    NUM_FEATURES,
    Run,
    algorithm_of,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    model,
    script,
    scripted,
    steps,
)

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput

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


EVERYBODY = np.tile(np.arange(7), (3, 1))


@pytest.mark.long
def test_fedrep_without_a_head_and_equal_work_is_fedavg():
    """The head empty, the whole model is shared; epochs come as alternations, as epochs, or as units of work."""
    whole = model(cut=None, hidden=(5,))
    optimizer = srp.SGD(0.2, weight_decay=0.1)
    policy, sizes = scripted(EVERYBODY, [7, 3, 5]), [7, 3, 5]

    def run_of(algorithm):
        run = Run(algorithm, DATA, policy)
        return run, run.host_state()

    def after(run, start, work):
        run.place(start._replace(policy=script(EVERYBODY, sizes, work)))
        server = steps(run, 3)[-1].server
        return server.params.representation if hasattr(server, "params") else server.representation

    fedavg = run_of(srp.algorithms.FedAvg(whole, srp.Training(optimizer, batch_size=4)))
    once, five_times = (
        run_of(srp.algorithms.FedRep(whole, srp.Training(optimizer, batch_size=4, epochs=epochs))) for epochs in (1, 5)
    )
    five = after(*fedavg, work=5)
    assert_close(after(*once, work=1), after(*fedavg, work=1), 1e-6)
    assert_close(after(*once, work=5), five, 1e-6)
    assert_close(after(*five_times, work=1), five, 1e-6)
    assert_close(after(*five_times, work=2), after(*fedavg, work=10), 1e-5)
    with pytest.raises(AssertionError):
        assert_close(after(*fedavg, work=1), five, 1e-3)


def gradient_descent(params, x, y, step, number):
    for _ in range(number):
        gradient = mlp.gradient(params, x, y)
        params = jax.tree.map(lambda w, g: w - step * g, params, gradient)
    return params


@pytest.mark.short("pooled")
@pytest.mark.parametrize("members", [[1], [0, 1, 2, 3, 4, 5, 6]], ids=["one_client", "pooled"])
def test_full_batches_are_gradient_descent(members):
    """One client: on its loss. Several, weighted by examples, with one step a round: on the loss of all examples."""
    split_model = model(hidden=(5,))
    clients = [CLIENTS[i] for i in members]
    algorithm = srp.algorithms.FedAvg(split_model, srp.Training(srp.SGD(0.3), batch_size=9, weighting="num_examples"))
    run = Run(algorithm, federation(clients), srp.participation.Full())
    by_layer = lambda params: {k: jax.tree.map(np.float64, v) for part in params for k, v in part.items()}  # noqa: E731
    start = by_layer(run.host_state().server.params)
    run.rounds(5)
    x, y = np.concatenate([c.x for c in clients]), np.concatenate([c.y for c in clients])
    expected = gradient_descent(start, x.astype(np.float64), y, 0.3, 5)
    result = by_layer(run.host_state().server.params)
    assert_close(result, expected, 1e-5)
    with pytest.raises(AssertionError):
        assert_close(result, start, 1e-2)


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


def test_every_method_meets_the_same_stragglers_and_pools():
    """Under one key: times, cohorts and sizes of very different algorithms are equal, bit for bit."""
    count_rounds = algorithm_of(
        lambda key, broadcast, state, examples, context: ClientOutput(state, state + 1),
        init_client=lambda key, server, examples: jax.numpy.zeros(()),
        evaluations={"rounds": lambda key, server, state, examples: lambda x: jax.numpy.tile(state, (len(x), 4))},
    )
    policy = srp.participation.Doubling(2, 1, pool=5)
    runs = {}
    for name, algorithm in {
        "few_lines": count_rounds,
        "lg_fedavg": srp.algorithms.LGFedAvg(model(hidden=(4,)), srp.Training(batch_size=4)),
    }.items():
        run = Run(algorithm, DATA, policy, RANDOM_CLOCK, key=jax.random.key(3))
        start = run.host_state()
        rounds = run.rounds(4).rounds
        touched = None
        if jax.tree.leaves(start.clients):
            changed = [
                np.any((a != b).reshape(7, -1), axis=1)
                for a, b in zip(*map(jax.tree.leaves, (run.host_state().clients, start.clients)), strict=True)
            ]
            touched = np.any(changed, axis=0).tolist()
        runs[name] = (rounds.compute_time, rounds.cohort_size, rounds.stage, run.client_time), touched
    for facts, _ in runs.values():
        assert_same_bits(facts, runs["few_lines"][0])
    assert runs["lg_fedavg"][1] == runs["few_lines"][1]  # the same clients have taken part
    assert runs["few_lines"][0][1].tolist() == [2, 4, 5, 5]
