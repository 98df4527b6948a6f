"""Clients that come and go, and clients that fail."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

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
    def needs_costs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the other clock needs them."""
        return self.clock.needs_costs

    def fit(self, costs: WorkCosts) -> Clock:
        """The same with the fitted clock."""
        return dataclasses.replace(self, clock=self.clock.fit(costs))


@part
class Available(Wrapped):
    """Clients of another clock come and go; a client that leaves before its work is done fails.

    Policies select clients that are available when the round begins. If none is, time passes until the first one
    arrives. The times of work are those of the other clock under the same key.

    Args:
        clock: gives the time of a unit of local work of each client.
        availability: `Markov`, `DayNight` or `Intervals`, in the time units of the clock.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> fixed = srp.clocks.Fixed(srp.clocks.Constant(1.0))
        >>> clock = srp.clocks.Available(fixed, srp.clocks.DayNight(24.0, share=0.25))
        >>> times, _ = clock.sample(jax.random.key(1), clock.init(jax.random.key(0), 100), jnp.asarray(3.0))
        >>> 10 < int(times.available.sum()) < 40, bool((times.stays[times.available] <= 6).all())
        (True, True)
    """

    availability: Availability

    def __post_init__(self) -> None:
        clock = self.clock
        while isinstance(clock, Wrapped):
            if isinstance(clock, Available):
                raise ValueError(
                    "available: clock has an availability already; give a clock without Available(...)"
                )
            clock = clock.clock

    def init(self, key: Key, num_clients: int) -> AvailableState:
        """The states of clock and availability."""
        model = self.availability.init(named_key(key, "availability"), num_clients)
        return AvailableState(self.clock.init(key, num_clients), model)

    def sample(
        self, key: Key, state: AvailableState, now: Array
    ) -> tuple[ClientTimes, AvailableState]:
        """The times of the other clock, with the clients' availability."""
        times, clock = self.clock.sample(key, state.clock, now)
        (arrives, leaves), model = self.availability.sample(
            named_key(key, "availability"), state.availability, now
        )
        wait = jnp.min(arrives)
        stays = (
            leaves - wait
            if times.stays is None
            else jnp.minimum(leaves - wait, times.stays)
        )
        return times._replace(
            available=arrives <= wait, stays=stays, wait=wait
        ), AvailableState(clock, model)


@part
class Failing(Wrapped):
    """Every participant of a round fails with a given probability, at a time drawn uniformly within its unit of work.

    Under a policy with several units of work, failures happen within the first unit. A client whose time is 0 never
    fails.

    Args:
        clock: gives the time of a unit of local work of each client.
        rate: probability that a participant fails in a round.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> clock = srp.clocks.Failing(srp.clocks.Fixed(srp.clocks.Constant(1.0)), rate=0.1)
        >>> times, _ = clock.sample(jax.random.key(1), clock.init(jax.random.key(0), 1000), jnp.zeros(()))
        >>> 50 < int((times.stays < times.realised).sum()) < 150
        True
    """

    rate: Share

    def init(self, key: Key, num_clients: int) -> ClockState:
        """The state of the other clock."""
        return self.clock.init(key, num_clients)

    def sample(
        self, key: Key, state: ClockState, now: Array
    ) -> tuple[ClientTimes, ClockState]:
        """The times of the other clock, with the times of failures."""
        times, state = self.clock.sample(key, state, now)
        key, clock = named_key(key, "failure"), self.clock
        while isinstance(clock, Wrapped):
            if isinstance(clock, Failing):  # it has failures of its own
                key = named_key(key, "failure")
            clock = clock.clock
        key_who, key_when = jax.random.split(key)
        shape, dtype = times.realised.shape, times.realised.dtype
        fails = jax.random.uniform(key_who, shape, dtype) < self.rate
        stays = jnp.where(
            fails, times.realised * jax.random.uniform(key_when, shape, dtype), jnp.inf
        )
        if times.available is not None and times.stays is not None:
            return times._replace(stays=jnp.minimum(stays, times.stays)), state
        return times._replace(
            available=jnp.ones(shape, bool), stays=stays, wait=jnp.zeros((), dtype)
        ), state
