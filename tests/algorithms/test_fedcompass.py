"""FedCompass under `compass` against an event simulation in plain Python, in float64."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders
from reference import fedcompass
from reference.local import Sgd, batches
from reference.small import KEY, Run, assert_close, clients_of, federation, model
from setting import by_layer, optimizer, recorded_times

import fedjax_srp as srp

pytestmark = pytest.mark.usefixtures("float64")

COUNTS, TEST_COUNTS = (2, 3, 7, 5, 8, 4), (2, 2, 2, 2, 2, 2)
NUM_CLIENTS, ROUNDS, BATCH, EPOCHS = len(COUNTS), 50, 3, 1
CLOCKS = {
    "fixed": srp.clocks.Fixed(srp.clocks.Uniform(0.3, 2.0)),
    "dynamic": srp.clocks.Dynamic(srp.clocks.Exponential(1.0)),
}


@pytest.mark.short("dynamic-*")
@pytest.mark.parametrize(
    ("clock_name", "options"),
    [("fixed", {"chunk_size": 2}), ("dynamic", {"devices": 2, "chunk_size": 1})],
)
def test_fedcompass_is_a_sequence_of_arrivals_and_timers(clock_name, options):
    clients = clients_of(COUNTS, TEST_COUNTS, dtype=np.float64)
    split_model, clock = model(dtype=jnp.float64), CLOCKS[clock_name]
    sgd = Sgd(0.1, momentum=0.5)
    training = srp.Training(optimizer(sgd), batch_size=BATCH, epochs=EPOCHS)
    algorithm = srp.algorithms.FedCompass(
        split_model, training, server_step_size=0.7, staleness_exponent=0.8
    )
    policy = srp.participation.Compass(
        min_work=1, max_work=4, latest_factor=1.2, pace_momentum=0.6
    )
    run = Run(algorithm, federation(clients), policy, clock, **options)
    state = run.host_state()
    start = by_layer(split_model, *state.server.params)

    times = recorded_times(clock, NUM_CLIENTS, ROUNDS + 1)
    table = [of_round.realised.tolist() for of_round in times]
    happenings = fedcompass.events(
        NUM_CLIENTS, lambda e, i: table[e][i], 1, 4, factor=1.2, momentum=0.6
    )
    orders = RecordedOrders(KEY, COUNTS, BATCH)

    def rows(number, i, units):
        return batches(orders.epochs(number, i, "local", units * EPOCHS), BATCH)

    expected = fedcompass.run(
        start, clients, happenings, rows, sgd=sgd, alpha=0.7, exponent=0.8
    )
    elapsed, kinds = 0.0, []
    for happened, staleness, params in itertools.islice(expected, ROUNDS):
        before = state.rounds_taken
        rounds = run.rounds().rounds
        state = run.host_state()
        elapsed += float(rounds.compute_time[0])
        kinds.append(happened.kind)
        assert int(rounds.stage[0]) == happened.kind
        assert np.flatnonzero(state.rounds_taken - before).tolist() == sorted(staleness)
        assert elapsed == pytest.approx(happened.time, rel=1e-9)
        found = float(rounds.metrics["staleness"][0])
        assert found == pytest.approx(np.mean([*staleness.values()]), rel=1e-9)
        assert_close(by_layer(split_model, *state.server.params), params, 1e-9)
    assert kinds.count(fedcompass.FIRST) == NUM_CLIENTS
    assert kinds.count(fedcompass.GROUP) > 10
    if clock_name == "dynamic":  # estimates of fixed speeds are exact
        assert kinds.count(fedcompass.LATE) > 3
    else:
        assert fedcompass.LATE not in kinds


def test_with_equal_speeds_it_is_synchronous_from_the_second_jobs_on():
    """Then it is FedAvg with the most work; batches are whole, so that no draw matters."""
    data = federation(clients_of(COUNTS, TEST_COUNTS, dtype=np.float64))
    split_model, clock = (
        model(dtype=jnp.float64),
        srp.clocks.Fixed(srp.clocks.Constant(0.7)),
    )
    of_job = srp.Training(srp.SGD(0.3), batch_size=99, epochs=1)
    algorithm = srp.algorithms.FedCompass(split_model, of_job, server_step_size=1.0)
    run = Run(algorithm, data, srp.participation.Compass(1, 3), clock)
    run.rounds(NUM_CLIENTS + 1)
    start = run.host_state().server.params
    together = run.rounds(4).rounds
    assert together.cohort_size.tolist() == [NUM_CLIENTS] * 4
    np.testing.assert_allclose(together.compute_time, 3 * 0.7, rtol=1e-6)
    of_round = srp.Training(srp.SGD(0.3), batch_size=99, epochs=3)
    history = srp.simulate(
        srp.algorithms.FedAvg(split_model, of_round), data, clock=clock, num_rounds=4,
        start=start, key=KEY, eval_every=4, progress=False,
    )  # fmt: skip
    found = by_layer(split_model, *run.host_state().server.params)
    expected = by_layer(split_model, *history.server_state.params)
    assert_close(found, expected, 1e-9)
    with pytest.raises(AssertionError):
        assert_close(found, by_layer(split_model, *start), 1e-3)
