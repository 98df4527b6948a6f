"""AsyncSGD under `queued` against clients with queues, in float64, and the law of its draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders
from reference import asyncsgd
from reference.local import Sgd, batches
from reference.small import (
    KEY,
    Run,
    assert_close,
    clients_of,
    federation,
    made_policy,
    model,
    refused,
)
from setting import by_layer, optimizer, recorded_times

import fedjax_srp as srp
from fedjax_srp import ClientTimes

COUNTS, TEST_COUNTS = (2, 3, 7, 5, 8), (2, 2, 2, 2, 2)
NUM_CLIENTS, ROUNDS, JOBS, BATCH, EPOCHS = len(COUNTS), 24, 7, 3, 2
WEIGHTS = np.array([1.0, 4.0, 2.0, 0.5, 2.5])


@pytest.mark.usefixtures("float64")
@pytest.mark.short("weights1-options1")
@pytest.mark.parametrize(
    ("weights", "options"),
    [(1.0, {"chunk_size": 2}), (WEIGHTS, {"devices": 2})],
)
def test_asyncsgd_is_a_network_of_queues(weights, options):
    clients, split_model, sgd = (
        clients_of(COUNTS, TEST_COUNTS, dtype=np.float64),
        model(dtype=jnp.float64),
        Sgd(0.1, momentum=0.5),
    )
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
    policy = srp.participation.Queued(JOBS, weights)

    def select(key, state, times):
        cohort, new = policy.select(key, state[0], times)
        drawn = new.owner[cohort.stage]
        return cohort, (new, cohort.client_ids[0], drawn)

    def init(key, num_clients):
        return policy.init(key, num_clients), jnp.int32(0), jnp.int32(0)

    training = srp.Training(optimizer(sgd), batch_size=BATCH, epochs=EPOCHS)
    algorithm = srp.algorithms.AsyncSGD(
        split_model, training, server_step_size=0.7, num_jobs=JOBS
    )
    watched = made_policy("watched", init, select, lambda state, info: state)
    run = Run(algorithm, federation(clients), watched, clock, **options)
    start = by_layer(split_model, *run.host_state().server.params)
    first = run.host_state().policy[0].owner.tolist()
    found, drawn = [], []
    for _ in range(ROUNDS):
        rounds = run.rounds().rounds
        state = run.host_state()
        found.append((rounds, int(state.policy[1]), state.server.params))
        drawn.append(int(state.policy[2]))

    times = recorded_times(clock, NUM_CLIENTS, ROUNDS + 1)
    orders = RecordedOrders(KEY, COUNTS, BATCH)
    queue = asyncsgd.jobs(
        first,
        lambda version: drawn[version - 1],
        lambda version, i: float(times[version].realised[i]),
    )

    def rows(version, i):
        return batches(orders.epochs(version, i, "local", EPOCHS), BATCH)

    shares = np.ones(NUM_CLIENTS) * weights
    expected = asyncsgd.run(
        start, clients, queue, rows, probabilities=shares / shares.sum(), sgd=sgd, eta=0.7
    )
    elapsed, most, held = 0.0, 0, max(first.count(i) for i in first)
    for (job, staleness, params), (rounds, client, actual) in zip(
        itertools.islice(expected, ROUNDS), found, strict=True
    ):
        elapsed += float(rounds.compute_time[0])
        most = max(most, staleness)
        assert client == job.client
        assert elapsed == pytest.approx(job.end, rel=1e-9)
        assert float(rounds.metrics["staleness"][0]) == staleness
        assert_close(by_layer(split_model, *actual), params, 1e-9)
    assert held > 1  # several jobs of a client
    assert most > JOBS


def test_clients_deliver_in_proportion_to_their_weights_whatever_their_speed():
    rounds = 20_000
    policy = srp.participation.Queued(4, WEIGHTS)
    clock = srp.clocks.Dynamic(srp.clocks.Constant([1.0, 5.0, 2.0, 0.1, 1.0]))
    clock_state = clock.init(KEY, NUM_CLIENTS)

    def step(state, key):
        times, _ = clock.sample(key, clock_state, jnp.zeros(()))
        cohort, state = policy.select(key, state, ClientTimes(*times[:2]))
        return state, (cohort.client_ids[0], cohort.importance[0])

    keys = jax.random.split(KEY, rounds)
    state = policy.init(KEY, NUM_CLIENTS)
    ids, importance = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[1])(
        state, keys
    )
    share = WEIGHTS / WEIGHTS.sum()
    found = np.bincount(ids, minlength=NUM_CLIENTS) / rounds
    np.testing.assert_allclose(found, share, atol=5 * 0.5 / np.sqrt(rounds))
    np.testing.assert_allclose(importance, (1 / (NUM_CLIENTS * share))[ids], rtol=1e-5)


def test_too_few_slots_show_as_divergence():
    data = federation(clients_of(COUNTS, TEST_COUNTS))
    clock = srp.clocks.Fixed(srp.clocks.Constant(1.0))
    algorithm = srp.algorithms.AsyncSGD(model(), num_jobs=1)
    run = Run(algorithm, data, srp.participation.Queued(6), clock)
    assert not run.rounds(12).rounds.finite[-1]


def test_absence_is_refused():
    clock = srp.clocks.Failing(srp.clocks.Fixed(srp.clocks.Exponential(1.0)), 0.1)
    data = federation(clients_of(COUNTS, TEST_COUNTS))
    with refused("policy 'queued': rounds overlap, and a client that leaves"):
        srp.simulate(
            srp.algorithms.AsyncSGD(model()), data, participation="queued", clock=clock,
            num_rounds=1, key=KEY,
        )  # fmt: skip
