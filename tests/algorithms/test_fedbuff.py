"""FedBuff under `buffered` against a queue of jobs in float64, and its limits: everybody, and fresh models only."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders
from reference import fedavg, fedbuff
from reference.local import Sgd, batches
from reference.small import KEY, Run, assert_close, clients_of, federation, made_policy, model

import fedjax_srp as srp
from fedjax_srp.base import named_key
from fedjax_srp.engine.contract import check_algorithm
from fedjax_srp.engine.round import stream
from fedjax_srp.engine.traffic import traffic

COUNTS, TEST_COUNTS = (1, 3, 7, 5, 12, 2, 9), (4, 9, 1, 6, 5, 8, 3)
NUM_CLIENTS, NUM_STEPS, BATCH, EPOCHS, TUNING = len(COUNTS), 14, 4, 2, 3
CLOCKS = {clock.name: clock(srp.clocks.Exponential(1.0)) for clock in (srp.clocks.Fixed, srp.clocks.Dynamic)}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def recorded_times(clock, num_rounds):
    """(num_rounds, num_clients): what the clock says in every round of a run with this root key."""
    state, table = clock.init(named_key(named_key(KEY, "clock"), "init"), NUM_CLIENTS), []
    for t in range(num_rounds):
        times, state = clock.sample(stream(KEY, "clock", jnp.int32(t)), state, jnp.zeros(()))
        table.append(np.asarray(times.realised))
    return np.array(table)


def watched(k):
    """`buffered`; its state holds the last cohort too, in the order of arrival."""
    policy = srp.participation.Buffered(k)

    def select(key, state, times):
        cohort, new = policy.select(key, state[0], times)
        return cohort, (new, cohort.client_ids)

    return made_policy(
        "watched", lambda key, num: (policy.init(key, num), jnp.zeros(k, jnp.int32)), select, lambda state, info: state
    )


def by_layer(split_model, params):
    """Parameters of the package as {layer: {part: array}} in the order of the layers."""
    together = {name: layer for part in params for name, layer in part.items()}
    return {name: jax.tree.map(np.asarray, together[name]) for name in split_model.layer_names}


@functools.cache
def setting():
    """Model, clients and data."""
    clients = clients_of(COUNTS, TEST_COUNTS, dtype=np.float64)
    return model(dtype=jnp.float64), clients, federation(clients)


def optimizer(sgd):
    return srp.SGD(sgd.step, sgd.momentum or None, sgd.decay or None)


@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize(
    ("k", "sgd", "options", "run_options"),
    [
        (1, Sgd(0.3), {}, {"chunk_size": 3}),
        (
            3,
            Sgd(0.2, momentum=0.6, decay=0.05),
            {"eta": 0.7, "exponent": 0.8, "client_weighting": "num_examples"},
            {"devices": 2, "chunk_size": 1, "evaluations": "all"},
        ),
        (NUM_CLIENTS, Sgd(0.3), {"eta": 1.3}, {"chunk_size": 3}),
    ],
    ids=["k1", "k3", "everybody"],
)
def test_fedbuff_is_a_queue_of_jobs(k, sgd, options, run_options, clock_name):
    split_model, clients, data = setting()
    algorithm = srp.algorithms.FedBuff(
        split_model,
        srp.Training(
            optimizer(sgd), batch_size=BATCH, epochs=EPOCHS, weighting=options.get("client_weighting", "uniform")
        ),
        server_step_size=options.get("eta", 1.0),
        staleness_exponent=options.get("exponent", 0.5),
        fine_tune_epochs=TUNING,
    )
    clock = CLOCKS[clock_name]
    run = Run(algorithm, data, watched(k), clock, **run_options)
    start = by_layer(split_model, run.host_state().server.params)
    table, orders = recorded_times(clock, NUM_STEPS + 1), RecordedOrders(KEY, COUNTS, BATCH)

    def rows(version, i):
        return batches(orders.epochs(version, i, "local", EPOCHS), BATCH)

    expected = fedbuff.run(start, clients, lambda v, i: table[v, i], rows, k=k, sgd=sgd, **options)
    elapsed, versions = 0.0, np.zeros(NUM_CLIENTS, np.int32)
    for t, step in enumerate(itertools.islice(expected, NUM_STEPS)):
        rounds, _, scores = run.rounds()
        state = run.host_state()
        elapsed += float(rounds.compute_time[0])
        versions[step.arrivals] = t + 1
        assert elapsed == pytest.approx(step.time, rel=1e-9)
        assert state.policy[1].tolist() == step.arrivals
        assert float(rounds.metrics["staleness"][0]) == pytest.approx(np.mean(step.staleness), rel=1e-9)
        assert state.clients.version.tolist() == versions.tolist()
        assert_close(by_layer(split_model, state.server.params), step.params, 1e-9)
        for i, client in enumerate(clients if "evaluations" in run_options else []):
            tuning = batches(orders.tuning(t + 1, i, "head", TUNING), BATCH)
            expected_scores = {
                "global": fedavg.global_accuracy(step.params, client),
                "fine_tune": fedavg.fine_tuned_accuracy(step.params, ["out"], client, tuning, sgd),
            }
            assert {name: total[i] / count[i] for name, (total, count) in scores.items()} == expected_scores


@pytest.mark.parametrize("clock_name", CLOCKS)
def test_waiting_for_everybody_is_fedavg(clock_name):
    split_model, _, data = setting()
    training = srp.Training(srp.SGD(0.3), batch_size=BATCH, epochs=EPOCHS)
    synchronous = Run(srp.algorithms.FedAvg(split_model, training), data, srp.participation.Full(), CLOCKS[clock_name])
    buffered = srp.participation.Buffered(NUM_CLIENTS)
    asynchronous = Run(srp.algorithms.FedBuff(split_model, training), data, buffered, CLOCKS[clock_name])
    for _ in range(4):
        expected, rounds = synchronous.rounds().rounds, asynchronous.rounds().rounds
        assert rounds.compute_time[0] == expected.compute_time[0]
        assert rounds.metrics["staleness"][0] == 0.0
        assert_close(asynchronous.host_state().server.params, synchronous.host_state().server.params, 1e-12)


def test_one_model_travels_each_way():
    split_model, _, data = setting()
    sent = traffic(check_algorithm(srp.algorithms.FedBuff(split_model), data))
    one_model = sum(leaf.nbytes for leaf in jax.tree.leaves(split_model.init(KEY)))
    assert (sent.up, sent.down) == (one_model, one_model)


def test_updates_lose_weight_by_the_power_law():
    """A client of which the model is old by tau: its update is (1 + tau)^-a of a fresh one."""
    split_model, _, data = setting()
    algorithm = srp.algorithms.FedBuff(split_model, staleness_exponent=0.7)
    examples, server = data.train_client(jnp.int32(2)), algorithm.init(KEY, data)
    state = algorithm.init_client(KEY, server, examples)

    def update(version):
        context = srp.RoundContext(jnp.int32(9), jnp.int32(0), jnp.int32(1), NUM_CLIENTS, jnp.int32(1))
        return algorithm.round.client(KEY, (), state._replace(version=jnp.int32(version)), examples, context)

    fresh = update(9).message
    for version in (8, 5, 0):
        tau, stale = 9 - version, update(version)
        assert float(stale.info["staleness"]) == tau
        assert_close(stale.message, jax.tree.map(lambda d, tau=tau: (1 + tau) ** -0.7 * d, fresh), 1e-12)
