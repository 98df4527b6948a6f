"""Worlds of clients that come, leave and fail: clocks, and the same in plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from reference import arena

from fedjax_srp import clocks

N, PERIOD, COST = 12, 40.0, 0.25
KEY = jax.random.key(3)
rng = np.random.default_rng(0)
EDGES = np.sort(rng.uniform(0, PERIOD, (N, 8)), axis=1)
EDGES[:, 6:] = 0.0  # three intervals a client, and padding
EDGES[1] = 0.0  # one client never comes
# and for a while no client is available: all leave, one shortly after the other
LAST = 15.0 + 1e-3 * np.arange(N)[:, None]
EDGES[:, :] = np.where((EDGES > 15) & (EDGES < 19), LAST, EDGES)
PHASES = rng.uniform(size=N)
TIMES = clocks.Dynamic(clocks.Exponential(clocks.Uniform(0.3, 1.0)), communication=COST)
INTERVALS = clocks.Intervals(EDGES[:, ::2], EDGES[:, 1::2], PERIOD)
WORLDS = {
    "always": TIMES,
    "failing": clocks.Failing(TIMES, 0.4),
    "hardly": clocks.Failing(TIMES, 0.97),
    "intervals": clocks.Available(TIMES, INTERVALS),
    "day_and_night": clocks.Available(TIMES, clocks.DayNight(8.0, 0.2, PHASES)),
    "markov": clocks.Available(TIMES, clocks.Markov(on=2.0, off=6.0)),
    "intervals_failing": clocks.Failing(clocks.Available(TIMES, INTERVALS), 0.3),
}


def intervals_of(world):
    """Intervals of every client and their period; None in worlds where these are random."""
    if world.startswith("intervals"):
        return [
            list(zip(row[::2].tolist(), row[1::2].tolist(), strict=True)) for row in EDGES
        ], PERIOD
    if world == "day_and_night":
        starts = ((-PHASES) % 1 * 8.0).tolist()
        return [[(s, s + 1.6), (s - 8.0, s - 6.4)] for s in starts], 8.0
    return None, None


@functools.cache
def sampler(world):
    return jax.jit(WORLDS[world].sample)


def conditions(world, key, clock_state, now):
    """The times of the round that begins at `now`, the clock's state, available ids, how long each stays, the wait."""
    times, clock_state = sampler(world)(key, clock_state, jnp.asarray(now))
    plain_intervals, period = intervals_of(world)
    wait, stays, available = 0.0, [np.inf] * N, list(range(N))
    if times.available is not None:
        available, stays, wait = (
            np.flatnonzero(times.available).tolist(),
            times.stays.tolist(),
            float(times.wait),
        )
    if plain_intervals is not None:  # computed without the clock
        visits = [arena.presence(row, period, now) for row in plain_intervals]
        wait = min(arrives for arrives, _ in visits)
        available = [i for i in range(N) if visits[i][0] <= wait]
        left = [visits[i][1] - wait for i in range(N)]
        stays = np.minimum(left, stays).tolist() if world.endswith("failing") else left
    return times, clock_state, available, stays, wait
