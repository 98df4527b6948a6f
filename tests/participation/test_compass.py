"""Compass: long runs of groups against an event simulation in plain Python."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fedcompass

from fedjax_srp import ClientTimes, participation

KEY = jax.random.key(0)


def run(policy, table, communication=None):
    """The cohorts of one round per row of the table of times, from one program."""
    table = jnp.asarray(table, dtype=float)

    def step(state, row):
        times = ClientTimes(table[0], row, communication)
        cohort, state = policy.select(KEY, state, times)
        return state, cohort

    return jax.jit(lambda state, table: jax.lax.scan(step, state, table)[1])(
        policy.init(KEY, table.shape[1]), table
    )


def units_of(cohorts, t):
    size = int(cohorts.size[t])
    ids, work = cohorts.client_ids[t][:size], cohorts.work[t][:size]
    return dict(zip(ids.tolist(), work.tolist(), strict=True))


@pytest.mark.parametrize(
    ("spread", "limits", "factor", "momentum"),
    [(0.0, (2, 10), 1.5, 0.9), (0.3, (20, 100), 1.5, 0.9), (1.0, (1, 5), 1.0, 0.5)],
)
def test_events_equal_those_of_plain_python(spread, limits, factor, momentum):
    """Speeds differ tenfold, and vary from job to job by a factor exp(spread z)."""
    rng, num_rounds = np.random.default_rng(len(limits) + limits[0]), 400
    speeds = np.exp(rng.uniform(0, np.log(10), 9))
    table = speeds * np.exp(spread * rng.normal(size=(num_rounds + 1, 9)))
    policy = participation.Compass(*limits, factor, momentum)
    with jax.enable_x64(True):
        cohorts = jax.device_get(run(policy, table[:-1]))
    expected = fedcompass.events(9, lambda e, i: table[e, i], *limits, factor, momentum)
    kinds, times = set(), np.cumsum(cohorts.duration)
    for t, happened in enumerate(itertools.islice(expected, num_rounds)):
        assert units_of(cohorts, t) == happened.work
        assert int(cohorts.stage[t]) == happened.kind
        assert times[t] == pytest.approx(happened.time, rel=1e-9)
        kinds.add(happened.kind)
    assert kinds == {0, 1, 2} if spread else {0, 2}
    assert cohorts.size[100:].mean() > (1.2 if spread == 1.0 else 2.0)  # in groups
    sizes = {units for t in range(num_rounds) for units in units_of(cohorts, t).values()}
    assert min(sizes) >= limits[0]
    assert max(sizes) == limits[1]


def test_groups_of_known_speeds_take_the_work_that_fits():
    """From a time on each round has all clients, with work in proportion to their speed."""
    cohorts = jax.device_get(
        run(participation.Compass(1, 8), np.tile([1.0, 2.0, 4.0, 8.0], (40, 1)))
    )
    assert units_of(cohorts, 39) == {0: 8, 1: 4, 2: 2, 3: 1}
    assert float(cohorts.duration[39]) == 8.0


def test_a_message_is_part_of_the_time_once_a_job():
    """A job of w units lasts w (T - C) + C."""
    times = np.tile([3.0, 5.0], (4, 1))
    cohorts = jax.device_get(run(participation.Compass(1, 4), times, jnp.float32(1.0)))
    assert cohorts.duration.tolist() == [9.0, 8.0, 1.0, 9.0]
