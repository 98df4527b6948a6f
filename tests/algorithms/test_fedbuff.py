"""FedBuff and FedAsync under `buffered` against a queue of jobs, in float64."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders
from reference import fedasync, fedbuff
from reference.local import Sgd, batches
from reference.small import (
    KEY,
    Run,
    assert_close,
    built,
    clients_of,
    federation,
    made_policy,
    model,
)
from setting import by_layer, optimizer, recorded_times

import fedjax_srp as srp

pytestmark = pytest.mark.usefixtures("float64")

COUNTS, TEST_COUNTS = (1, 3, 7, 5, 12, 2, 9), (4, 9, 1, 6, 5, 8, 3)
NUM_CLIENTS, NUM_STEPS, BATCH, EPOCHS = len(COUNTS), 14, 4, 2
CLOCKS = {
    clock.name: clock(srp.clocks.Exponential(1.0))
    for clock in (srp.clocks.Fixed, srp.clocks.Dynamic)
}


def watched(k, concurrency=None):
    """Return `buffered` with a state that also holds the last cohort, in order of arrival, and the next starters."""
    policy = srp.participation.Buffered(k, concurrency)

    def select(key, state, times):
        cohort, new = policy.select(key, state[0], times)
        return cohort, (
            new,
            cohort.client_ids,
            cohort.client_ids if concurrency is None else cohort.next_ids,
        )

    def init(key, num_clients):
        return (
            policy.init(key, num_clients),
            jnp.zeros(k, jnp.int32),
            jnp.zeros(k, jnp.int32),
        )

    return made_policy("watched", init, select, lambda state, info: state)


@functools.cache
def setting():
    """Return model, clients and data."""
    clients = clients_of(COUNTS, TEST_COUNTS, dtype=np.float64)
    return model(dtype=jnp.float64), clients, federation(clients)


class ReferenceRun:
    """A run of the package, and the inputs that a reference needs."""

    def __init__(
        self,
        cls,
        sgd,
        k,
        concurrency=None,
        clock_name="fixed",
        run_options=None,
        **options,
    ):
        split_model, _, data = setting()
        options |= {"optimizer": optimizer(sgd), "batch_size": BATCH, "epochs": EPOCHS}
        algorithm, clock = built(cls, split_model, **options), CLOCKS[clock_name]
        self.run = Run(
            algorithm,
            data,
            watched(k, concurrency),
            clock,
            **run_options or {"chunk_size": 3},
        )
        self.elapsed, self.start = (
            0.0,
            by_layer(split_model, *self.run.host_state().server.params),
        )
        self.orders = RecordedOrders(KEY, COUNTS, BATCH)
        times = recorded_times(clock, NUM_CLIENTS, 2 * NUM_STEPS + 1)
        table = np.array([of_round.realised for of_round in times])
        self.job_time = lambda version, i: table[version, i]

    def rows(self, version, i):
        return batches(self.orders.epochs(version, i, "local", EPOCHS), BATCH)

    def check(self, step):
        """Run one step of the server, compare it, and return the state after it."""
        rounds = self.run.rounds().rounds
        state = self.run.host_state()
        self.elapsed += float(rounds.compute_time[0])
        assert self.elapsed == pytest.approx(step.time, rel=1e-9)
        assert state.policy[1].tolist() == step.arrivals
        assert float(rounds.metrics["staleness"][0]) == pytest.approx(
            np.mean(step.staleness), rel=1e-9
        )
        assert_close(by_layer(setting()[0], *state.server.params), step.params, 1e-9)
        return state


@pytest.mark.short("k3-dynamic")
@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize(
    ("k", "sgd", "options", "run_options"),
    [
        (1, Sgd(0.3), {}, {"chunk_size": 3}),
        (
            3,
            Sgd(0.2, momentum=0.6, decay=0.05),
            {"eta": 0.7, "exponent": 0.8, "client_weighting": "num_examples"},
            {"devices": 2, "chunk_size": 1},
        ),
        (NUM_CLIENTS, Sgd(0.3), {"eta": 1.3}, {"chunk_size": 3}),
    ],
    ids=["k1", "k3", "everybody"],
)
def test_fedbuff_is_a_queue_of_jobs(k, sgd, options, run_options, clock_name):
    clients, weighting = setting()[1], options.get("client_weighting", "uniform")
    of_algorithm = {
        "server_step_size": options.get("eta", 1.0),
        "staleness_exponent": options.get("exponent", 0.5),
    }
    of_algorithm |= {"weighting": weighting, "run_options": run_options}
    beside = ReferenceRun(
        srp.algorithms.FedBuff, sgd, k, clock_name=clock_name, **of_algorithm
    )
    queue = fedbuff.jobs(NUM_CLIENTS, beside.job_time, k)
    expected = fedbuff.run(
        beside.start, clients, queue, beside.rows, k=k, sgd=sgd, **options
    )
    versions = np.zeros(NUM_CLIENTS, np.int32)
    for t, step in enumerate(itertools.islice(expected, NUM_STEPS)):
        state = beside.check(step)
        versions[step.arrivals] = t + 1
        assert state.clients.version.tolist() == versions.tolist()


@pytest.mark.short("3-5-run_options2-dynamic")
@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize(
    ("k", "concurrency", "run_options"),
    [(1, 3, {}), (3, 2, {"devices": 2, "chunk_size": 1}), (3, 5, {"chunk_size": 3})],
)
def test_with_limited_concurrency_a_random_client_starts_whenever_one_reports(
    k, concurrency, run_options, clock_name
):
    sgd = Sgd(0.3, momentum=0.5)
    beside = ReferenceRun(
        srp.algorithms.FedBuff, sgd, k, concurrency, clock_name, run_options
    )
    policy = beside.run.host_state().policy[0]
    first = np.flatnonzero(policy.begins).tolist()
    assert len(first) == concurrency
    later = policy.drawn.tolist()  # the next clients, as the policy draws them

    def next_client(taken, version):
        chosen = later.pop(0)
        assert chosen not in taken
        return chosen

    queue = fedbuff.limited_jobs(first, next_client, beside.job_time, k)
    expected, stale = (
        fedbuff.run(beside.start, setting()[1], queue, beside.rows, k=k, sgd=sgd),
        0.0,
    )
    for step in itertools.islice(expected, NUM_STEPS):
        state = beside.check(step)
        assert (
            int(state.policy[0].busy.sum()) == concurrency - 1
        )  # the next one begins with the next round
        later += state.policy[2].tolist()
        stale += sum(step.staleness)
    assert stale > 0


@pytest.mark.short("polynomial-*", "hinge-*")
@pytest.mark.parametrize(
    ("kind", "a", "b", "alpha", "rho"),
    [
        ("constant", 0.5, 0.0, 0.6, 0.0),
        ("polynomial", 0.8, 0.0, 0.9, 0.3),
        ("hinge", 1.5, 2.0, 0.7, 0.005),
    ],
)
def test_fedasync_agrees_with_its_reference(kind, a, b, alpha, rho):
    options = (
        {"staleness_exponent": a}
        if kind == "polynomial"
        else {"hinge_slope": a, "hinge_start": b}
    )
    options |= {"server_step_size": alpha, "mu": rho, "discount": kind}
    beside, most = ReferenceRun(srp.algorithms.FedAsync, Sgd(0.3), 1, **options), 0
    queue, weight_of = (
        fedbuff.jobs(NUM_CLIENTS, beside.job_time, 1),
        functools.partial(fedasync.s, kind, a=a, b=b),
    )
    numbers = {"sgd": Sgd(0.3), "alpha": alpha, "weight_of": weight_of, "rho": rho}
    expected = fedasync.run(beside.start, setting()[1], queue, beside.rows, **numbers)
    for step in itertools.islice(expected, 2 * NUM_STEPS):
        beside.check(step)
        most = max(most, step.staleness[0])
    assert most > b + 1
