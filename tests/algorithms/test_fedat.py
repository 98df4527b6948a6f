"""FedAT under `asynchronous_tiers` against a queue of tiers, in float64."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders
from reference import fedat
from reference.local import Sgd, batches
from reference.small import (
    KEY,
    Run,
    assert_close,
    clients_of,
    federation,
    made_policy,
    model,
)
from setting import by_layer, recorded_times

import fedjax_srp as srp

pytestmark = pytest.mark.usefixtures("float64")

COUNTS, TEST_COUNTS = (2, 3, 7, 5, 8, 2, 4), (2, 2, 2, 2, 2, 2, 2)
CLOCKS = {
    "fixed": srp.clocks.Fixed(srp.clocks.Uniform(0.5, 2.0)),
    "dynamic": srp.clocks.Dynamic(srp.clocks.Exponential(1.0)),
}
TIERS, K, ROUNDS, BATCH, EPOCHS = 3, 2, 16, 3, 2


@pytest.mark.short("dynamic-2")
@pytest.mark.parametrize(("clock_name", "devices"), [("fixed", 1), ("dynamic", 2)])
def test_fedat_is_a_queue_of_tiers(clock_name, devices):
    clock = CLOCKS[clock_name]
    clients, split_model, sgd = (
        clients_of(COUNTS, TEST_COUNTS, dtype=np.float64),
        model(dtype=jnp.float64),
        Sgd(0.3),
    )
    policy = srp.participation.AsynchronousTiers(K, tiers=TIERS)

    def select(key, state, times):
        cohort, new = policy.select(key, state[0], times)
        return cohort, (new, cohort.client_ids, cohort.stage)

    def init(key, num_clients):
        return policy.init(key, num_clients), jnp.zeros(K, jnp.int32), jnp.int32(0)

    training = srp.Training(
        srp.SGD(sgd.step), batch_size=BATCH, epochs=EPOCHS, weighting="num_examples"
    )
    algorithm = srp.algorithms.FedAT(split_model, training, mu=0.5, num_tiers=TIERS)
    run = Run(
        algorithm,
        federation(clients),
        made_policy("watched", init, select, lambda s, info: s),
        clock,
        devices,
    )
    start = by_layer(split_model, *run.host_state().server.params)
    drawn, found = {}, []
    for t in range(ROUNDS):
        rounds, state = run.rounds().rounds, run.host_state()
        found.append(
            (
                float(rounds.compute_time[0]),
                int(state.policy[2]),
                state.policy[1].tolist(),
                state.server.params,
            )
        )
        began = range(TIERS) if t == 0 else [found[-2][1]]
        drawn |= {(t, m): state.policy[0].cohorts[m].tolist() for m in began}

    times = recorded_times(clock, len(COUNTS), ROUNDS)
    order = np.argsort(np.asarray(times[0].expected))
    tier_of = {
        int(i): min(place // (len(COUNTS) // TIERS), TIERS - 1)
        for place, i in enumerate(order)
    }
    assert all(
        len(set(ids)) == K and {tier_of[i] for i in ids} == {m}
        for (_, m), ids in drawn.items()
    )
    drawn |= {
        (ROUNDS, m): [0] for m in range(TIERS)
    }  # begin after the rounds that are compared
    realised = [np.asarray(of_round.realised) for of_round in times] + [
        np.ones(len(COUNTS))
    ]
    queue = fedat.tier_rounds(
        lambda v, m: drawn[v, m], lambda v, i: float(realised[v][i]), TIERS
    )
    orders = RecordedOrders(KEY, COUNTS, BATCH)

    def rows(version, i):
        return batches(orders.epochs(version, i, "local", EPOCHS), BATCH)

    options = {
        "tiers": TIERS,
        "sgd": sgd,
        "penalty": 0.5,
        "client_weighting": "num_examples",
    }
    elapsed, seen = 0.0, set()
    for (ended, params), (duration, tier, ids, actual) in zip(
        itertools.islice(fedat.run(start, clients, queue, rows, **options), ROUNDS),
        found,
        strict=True,
    ):
        elapsed += duration
        seen.add(tier)
        assert (tier, set(ids)) == (ended.tier, set(ended.clients))
        assert elapsed == pytest.approx(ended.end, rel=1e-9)
        assert_close(by_layer(split_model, *actual), params, 1e-9)
    assert seen == {0, 1, 2}


def test_too_few_tiers_show_as_divergence():
    data, split_model = (
        federation(clients_of(COUNTS, TEST_COUNTS, dtype=np.float64)),
        model(dtype=jnp.float64),
    )
    policy, clock = (
        srp.participation.AsynchronousTiers(2, tiers=3),
        srp.clocks.Fixed(srp.clocks.Constant(1.0)),
    )
    run = Run(srp.algorithms.FedAT(split_model, num_tiers=2), data, policy, clock)
    assert run.rounds(3).rounds.finite.tolist() == [True, True, False]
