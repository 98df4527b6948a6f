"""The simulated time is the sum of the rounds' times, whatever their number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, algorithm_of, numbers

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput, ClientTimes, Clock
from fedjax_srp.rounds.round import SimulationState, all_clients, end_of_round

ONES = jnp.ones(3)
AVAILABLE = ClientTimes(
    ONES, ONES, available=ONES > 0, stays=1e9 * ONES, wait=0 * ONES[0]
)
START = SimulationState((), (), (), (), 0, jnp.zeros(()), jnp.zeros(()), ())


@pytest.mark.parametrize("times", [ClientTimes(ONES, ONES), AVAILABLE])
def test_a_million_rounds_take_their_sum(times):
    rounds = 1_000_000
    durations = np.full(rounds, 0.1, np.float32)
    durations[1::2] = 0.03

    def after(state, duration):
        now, ahead = end_of_round(state, all_clients(3), times, duration)
        return state._replace(now=now, ahead=ahead), now

    _, now = jax.jit(lambda durations: jax.lax.scan(after, START, durations))(durations)
    exact = np.cumsum(durations, dtype=np.float64)
    np.testing.assert_allclose(now, exact, rtol=2e-7)
    assert (np.diff(now) >= 0).all()
    plain = np.cumsum(durations, dtype=np.float32)
    assert abs(plain[-1] - exact[-1]) > 1e-3 * exact[-1]  # what is mended


@srp.part
class Tenth(Clock):
    """Every client is available, and needs 0.1."""

    def sample(self, key, state, now):
        return AVAILABLE._replace(expected=0.1 * ONES, realised=0.1 * ONES), state


def test_rounds_shorter_than_the_resolution_add_up():
    """At 10,000,000 the next float is 1 later: fifty rounds of 0.1 must move the time by 5, neither by 0 nor by 50."""
    algorithm = algorithm_of(lambda key, server, *rest: ClientOutput(server))
    simulation = srp.Simulation(algorithm, numbers(1.0, 2.0, 3.0), clock=Tenth())
    state = simulation.init(KEY)._replace(now=jnp.full((), 1e7))
    step = lambda state, _: (simulation.step(state)[0], None)
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, length=50))(state)
    assert state.now - 1e7 == pytest.approx(5, abs=0.51)


def test_time_never_goes_back():
    """A time that was rounded up by half of its resolution waits for the exact sum."""
    state = START._replace(now=jnp.asarray(3.0 + 2**-22), ahead=jnp.asarray(2.0**-23))
    now, ahead = end_of_round(state, all_clients(3), AVAILABLE, jnp.asarray(2.0**-30))
    assert now == state.now
    assert ahead == 2.0**-23 - 2.0**-30


def test_a_round_that_never_ends_leaves_the_time_infinite():
    state = START
    for duration in (1.0, np.inf, 1.0):
        now, ahead = end_of_round(state, all_clients(3), AVAILABLE, jnp.asarray(duration))
        state = state._replace(now=now, ahead=ahead)
    assert (state.now, state.ahead) == (np.inf, 0)
