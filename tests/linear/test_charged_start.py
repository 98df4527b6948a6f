"""The start by moments, charged: the history begins when the slowest client has answered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import assert_same_bits, refused

import fedjax_srp as srp
from fedjax_srp import named_key

TASK = srp.data.linear_task(jax.random.key(0), num_clients=5, dim=6, rank=2)
KEY = jax.random.key(4)
RANDOM = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
OPTIONS = {"num_rounds": 4, "eval_every": 2, "devices": 1, "progress": False}


def algorithm(charge_start=True, **options):
    return srp.algorithms.LinearFedRep(
        TASK, 0.1, samples_per_round=8, charge_start=charge_start, **options
    )


def run(charge_start=True, clock=RANDOM, **options):
    return srp.simulate(
        algorithm(charge_start), TASK, clock=clock, **{"key": KEY} | OPTIONS | options
    )


def slowest_in_the_start(clock, key=KEY):
    """Draw the times of the pass by the clock's own functions."""
    state = clock.init(named_key(named_key(key, "clock"), "init"), TASK.num_clients)
    key_start = named_key(named_key(key, "clock"), "start prepare")
    times, _ = clock.sample(key_start, state, jnp.zeros(()))
    return float(np.asarray(times.realised).max())


@pytest.fixture(scope="module")
def charged():
    return run()


@pytest.fixture(scope="module")
def free():
    return run(False)


def test_the_history_begins_when_the_slowest_client_has_answered(charged, free):
    begins = slowest_in_the_start(RANDOM)
    size = 4 * TASK.dim**2
    assert charged.start == (pytest.approx(begins, rel=1e-6), 1, size, 0)
    assert free.start == (0, 0, 0, 0)
    for cost in (0.0, 3.0):
        rounds = np.cumsum(free.compute_time + cost)
        expected = begins + cost + rounds
        np.testing.assert_allclose(charged.elapsed(cost), expected, rtol=1e-6)
        np.testing.assert_array_equal(free.elapsed(cost), rounds)
        np.testing.assert_array_equal(
            charged.eval_elapsed(cost), charged.elapsed(cost)[1::2]
        )
        stages = charged.stages(cost)
        assert stages[0].begins == pytest.approx(begins + cost)
    more = TASK.num_clients * size
    np.testing.assert_array_equal(charged.eval_bytes(), free.eval_bytes() + more)
    sent = [run.summary()["total_bytes_up"] for run in (charged, free)]
    assert sent[0] - sent[1] == more


def test_rounds_are_those_of_a_free_start(charged, free):
    for name in ("compute_time", "cohort_size", "accuracy"):
        np.testing.assert_array_equal(getattr(charged, name), getattr(free, name))
    np.testing.assert_array_equal(charged.metrics["distance"], free.metrics["distance"])
    assert_same_bits(charged.server_state, free.server_state)


def test_fixed_times_are_those_of_the_rounds():
    clock = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
    assert run(clock=clock).start.time == run(clock=clock).compute_time[0]


def test_a_clock_sees_the_time_before_round_one(charged):
    simulation = srp.Simulation(algorithm(), TASK, clock=RANDOM)
    state = simulation.init(KEY)
    assert float(state.now) == charged.start.time
    state, _ = simulation.step(state)
    assert float(state.now) == pytest.approx(charged.elapsed()[0])


def test_limits_progress_and_a_resumed_run_count_it(charged, tmp_path):
    seen = []
    limit = (charged.elapsed()[1] + charged.start.time) / 2
    assert limit > charged.elapsed()[1] - charged.start.time
    ended = run(
        checkpoint_dir=tmp_path,
        time_limit=float(limit),
        callback=lambda progress: seen.append(progress.elapsed),
    )
    assert ended.num_rounds == 2
    assert seen == charged.elapsed()[[1]].tolist()
    longer = run(checkpoint_dir=tmp_path)
    np.testing.assert_array_equal(longer.elapsed(2.0), charged.elapsed(2.0))


def test_each_seed_has_its_own_start():
    keys = jax.random.split(KEY, 2)
    runs = srp.simulate_seeds(algorithm(), TASK, clock=RANDOM, keys=keys, **OPTIONS)
    for history, key in zip(runs, keys, strict=True):
        expected = slowest_in_the_start(RANDOM, key)
        assert history.start.time == pytest.approx(expected, rel=1e-6)


def test_a_folder_keeps_it(charged, free, tmp_path):
    for name, history in {"charged": charged, "free": free}.items():
        loaded = srp.History.load(history.save(tmp_path / name))
        assert loaded.start == history.start
        np.testing.assert_array_equal(loaded.elapsed(2.0), history.elapsed(2.0))
    assert '"start": {' in (tmp_path / "charged" / "config.json").read_text()


def test_a_run_from_a_given_state_has_no_start(charged):
    assert run(start=charged.server_state).start == (0, 0, 0, 0)
    assert run(start=charged.server_state).elapsed()[0] < charged.elapsed()[0]


def test_a_random_start_costs_nothing():
    history = srp.simulate(
        algorithm(start="random"), TASK, clock=RANDOM, key=KEY, **OPTIONS
    )
    assert history.start == (0, 0, 0, 0)


def test_a_charged_start_is_not_given_the_times_of_another_clock(charged):
    with refused("^history=.*start depends on the clock; train it anew"):
        srp.retime(charged, TASK, "fixed")
    free = run(charge_start=False)
    assert srp.retime(free, TASK, "fixed").start.time == 0
