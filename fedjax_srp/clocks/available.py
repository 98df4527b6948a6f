"""Clients that come and go, and clients that fail."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
    Array,
    ClientTimes,
    Clock,
    ClockState,
    Key,
    PyTree,
    WorkCosts,
    named_key,
)
from fedjax_srp.clocks.availability import Availability
from fedjax_srp.parts.part import Share, part


class AvailableState(NamedTuple):
    """States of the other clock and of the availability."""

    clock: ClockState
    availability: PyTree


@part
class Wrapped(Clock):
    """Base of clocks that wrap another clock and pass the costs of a round to it.

    Args:
        clock: gives the time of a unit of local work of each client.
    """

    clock: Clock

    @property
    @override
    def needs_costs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.clock.needs_costs

    @override
    def fit(self, costs: WorkCosts) -> Clock:
        return dataclasses.replace(self, clock=self.clock.fit(costs))


@part
class Available(Wrapped):
    """Clients of another clock come and go; a client that leaves before its work is done fails.

    Policies select clients that are available when the round begins. If none is, time passes until
    the first one arrives. The times of work are those of the other clock under the same key.

    Args:
        clock: gives the time of a unit of local work of each client.
        availability: `Markov`, `DayNight` or `Intervals`, in the time units of the clock.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> fixed = srp.clocks.Fixed(srp.clocks.Constant(1.0))
        >>> clock = srp.clocks.Available(fixed, srp.clocks.DayNight(24.0, share=0.25))
        >>> state = clock.init(jax.random.key(0), 100)
        >>> times, _ = clock.sample(jax.random.key(1), state, jnp.asarray(3.0))
        >>> 10 < int(times.available.sum()) < 40
        True
        >>> bool((times.stays[times.available] <= 6).all())
        True
    """

    availability: Availability

    def __post_init__(self) -> None:
        clock = self.clock
        while isinstance(clock, Wrapped):
            if isinstance(clock, Available):
                raise ValueError(
                    "available: clock has an availability already; "
                    "give a clock without Available(...)"
                )
            clock = clock.clock

    @override
    def init(self, key: Key, num_clients: int) -> AvailableState:
        return AvailableState(
            clock=self.clock.init(key, num_clients),
            availability=self.availability.init(
                named_key(key, "availability"), num_clients
            ),
        )

    @override
    def sample(
        self, key: Key, state: AvailableState, now: Array
    ) -> tuple[ClientTimes, AvailableState]:
        times, clock_state = self.clock.sample(key, state.clock, now)
        presence, model_state = self.availability.sample(
            named_key(key, "availability"), state.availability, now
        )
        # the round begins when the first client arrives
        wait = jnp.min(presence.arrives)
        stays = presence.leaves - wait
        if times.stays is not None:
            stays = jnp.minimum(stays, times.stays)
        times = times._replace(available=presence.arrives <= wait, stays=stays, wait=wait)
        return times, AvailableState(clock_state, model_state)


@part
class Failing(Wrapped):
    """Every participant of a round fails with a given probability.

    The time of the failure is uniform within its unit of work. Under a policy with several units of
    work, failures happen within the first unit. A client whose time is 0 never fails.

    Args:
        clock: gives the time of a unit of local work of each client.
        rate: probability that a participant fails in a round.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> clock = srp.clocks.Failing(srp.clocks.Fixed(srp.clocks.Constant(1.0)), rate=0.1)
        >>> state = clock.init(jax.random.key(0), 1000)
        >>> times, _ = clock.sample(jax.random.key(1), state, jnp.zeros(()))
        >>> 50 < int((times.stays < times.realised).sum()) < 150
        True
    """

    rate: Share

    @override
    def init(self, key: Key, num_clients: int) -> ClockState:
        return self.clock.init(key, num_clients)

    @override
    def sample(
        self, key: Key, state: ClockState, now: Array
    ) -> tuple[ClientTimes, ClockState]:
        times, state = self.clock.sample(key, state, now)
        clock: Clock = self
        while isinstance(clock, Wrapped):
            if isinstance(clock, Failing):  # each one has failures of its own
                key = named_key(key, "failure")
            clock = clock.clock
        key_who, key_when = jax.random.split(key)
        shape = times.realised.shape
        dtype = times.realised.dtype
        fails = jax.random.uniform(key_who, shape, dtype) < self.rate
        time_of_failure = times.realised * jax.random.uniform(key_when, shape, dtype)
        stays = jnp.where(fails, time_of_failure, jnp.inf)
        if times.stays is not None:
            return times._replace(stays=jnp.minimum(stays, times.stays)), state
        everyone = jnp.ones(shape, bool)
        times = times._replace(available=everyone, stays=stays, wait=jnp.zeros((), dtype))
        return times, state
