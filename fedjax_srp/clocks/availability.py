"""Models of clients that come and go, for `clocks.Available`.

(num_clients, ...) arrays are indexed by client id.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import override

from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.clocks.distributions import Parameter, Uniform, check_length, per_client
from fedjax_srp.parts.part import Above, AtLeast, AtMost, Axes, part, undefined

_SHAPE = "give an array of shape (num_clients, most)"


class Presence(NamedTuple):
    """Times from now until each client arrives and leaves, (num_clients,) float."""

    arrives: Array  # 0 for clients that are available, inf for clients that never arrive
    leaves: Array  # end of the current interval of availability, or of the next one


@part
class Availability:
    """A model of when clients are available.

    A subclass is a part whose fields are its numbers.

    Attributes:
        name: by default the class name in lower case.
    """

    name: ClassVar[str] = "availability"

    def init(self, key: Key, num_clients: int, /) -> PyTree:
        """The state at time 0."""
        return ()

    def sample(self, key: Key, state: PyTree, now: Array, /) -> tuple[Presence, PyTree]:
        """The presence of clients at time `now`, which never decreases, with the round's key."""
        undefined(self.sample)


def _rounding_error(time: Array) -> Array:
    """Rounding error of times: a client with less time left counts as gone."""
    return 8 * jnp.finfo(time.dtype).eps * time


class MarkovState(NamedTuple):
    """The interval of each client at the last call, and the next one; (num_clients,) arrays."""

    on: Array  # float, mean duration
    off: Array  # float
    is_on: Array  # bool
    remaining: Array  # float, time until the next change
    following: Array  # float, time from that change to the one after it
    time: Array  # () float, of the last call


@part
class Markov(Availability):
    """Each client is available and away in turn, for independent exponential times.

    Clients start in the stationary distribution: available with probability on / (on + off).

    Args:
        on: mean time that a client is available: a number, one per client, or a distribution drawn
            once per client.
        off: mean time that it is away, likewise.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> model = srp.clocks.Markov(on=30.0, off=10.0)
        >>> state = model.init(jax.random.key(0), 1000)
        >>> presence, _ = model.sample(jax.random.key(1), state, jnp.asarray(5.0))
        >>> 700 < int((presence.arrives == 0).sum()) < 800
        True
    """

    on: Annotated[
        Parameter,
        Above(0),
        "give the mean time that a client is available, e.g. Markov(10.0, 5.0)",
    ]
    off: Annotated[
        Parameter,
        Above(0),
        "give the mean time that a client is away, e.g. Markov(10.0, 5.0)",
    ]

    @override
    def init(self, key: Key, num_clients: int) -> MarkovState:
        """A draw from the stationary distribution."""
        on = per_client(self, "on", named_key(key, "on"), num_clients)
        off = per_client(self, "off", named_key(key, "off"), num_clients)
        drawn = jax.random.uniform(named_key(key, "begin"), on.shape, on.dtype)
        is_on = drawn < on / (on + off)
        remaining, following = _intervals(key, is_on, on, off)
        return MarkovState(on, off, is_on, remaining, following, time=jnp.zeros(()))

    @override
    def sample(
        self, key: Key, state: MarkovState, now: Array
    ) -> tuple[Presence, MarkovState]:
        on = state.on
        off = state.off
        tolerance = _rounding_error(now)
        first = state.remaining - (now - state.time)
        second = first + state.following
        is_in_first = first > tolerance
        is_in_second = second > tolerance
        # P(on at t) = p + (1[on at 0] - p) exp(-(1/on + 1/off) t), with p = on / (on + off)
        share = on / (on + off)
        late = jnp.maximum(-second, 0)
        decay = jnp.exp(-(1 / on + 1 / off) * late)
        probability = share + (state.is_on.astype(share.dtype) - share) * decay
        uniform = jax.random.uniform(named_key(key, "begin"), share.shape, share.dtype)
        is_on = jnp.where(is_in_second, ~state.is_on, uniform < probability)
        is_on = jnp.where(is_in_first, state.is_on, is_on)
        remaining, following = _intervals(key, is_on, on, off)
        remaining = jnp.where(is_in_second, second, remaining)
        remaining = jnp.where(is_in_first, first, remaining)
        following = jnp.where(is_in_first, state.following, following)
        arrives = jnp.where(is_on, 0, remaining)
        leaves = jnp.where(is_on, remaining, remaining + following)
        state = MarkovState(on, off, is_on, remaining, following, time=now)
        return Presence(arrives, leaves), state


def _intervals(key: Key, is_on: Array, on: Array, off: Array) -> tuple[Array, Array]:
    """The rest of an interval, which is exponential too, and the next interval."""
    rest = jax.random.exponential(named_key(key, "rest"), on.shape, on.dtype)
    following = jax.random.exponential(named_key(key, "next"), on.shape, on.dtype)
    return rest * jnp.where(is_on, on, off), following * jnp.where(is_on, off, on)


@part
class DayNight(Availability):
    """Each client is available for a share of every day, at its own hours.

    Args:
        period: length of a day, in time units.
        share: share of the day for which a client is available.
        phase: time since the client last arrived, at time 0, as a share of a day in 0..1: a number,
            one per client, or a distribution drawn once per client.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> model = srp.clocks.DayNight(24.0, share=0.5, phase=[0.0, 0.75])
        >>> state = model.init(jax.random.key(0), 2)
        >>> presence, _ = model.sample(jax.random.key(1), state, jnp.asarray(3.0))
        >>> presence.arrives.tolist(), presence.leaves.tolist()
        ([0.0, 3.0], [9.0, 15.0])
    """

    period: Annotated[float, Above(0)]
    share: Annotated[float, Above(0), AtMost(1)] = 0.5
    phase: Annotated[Parameter, AtLeast(0), "give a share of the period, e.g. 0.0"] = (
        Uniform(0.0, 1.0)
    )

    @override
    def init(self, key: Key, num_clients: int) -> Array:
        """(num_clients,) float, the phases."""
        return per_client(self, "phase", named_key(key, "phase"), num_clients)

    @override
    def sample(self, key: Key, phase: Array, now: Array) -> tuple[Presence, Array]:
        """The presence at the hour of `now`."""
        # share of a day since the client arrived
        passed = (now / self.period + phase) % 1
        always = jnp.asarray(self.share >= 1)
        is_on = always | (passed < self.share - _rounding_error(now / self.period + 1))
        arrives = jnp.where(is_on, 0, 1 - passed)
        leaves = jnp.where(is_on, self.share - passed, arrives + self.share)
        leaves = jnp.where(always, jnp.inf, leaves)
        return Presence(self.period * arrives, self.period * leaves), phase


@part
class Intervals(Availability):
    """Recorded intervals of availability of each client, repeated from the end of the recording on.

    A client leaves at the end of each interval, and therefore at the end of the recording.

    Args:
        starts: (num_clients, most) float, beginnings of each client's intervals, in time units from
            0.
        ends: ends of the intervals, of the same shape. Fill rows with fewer intervals with starts =
            ends = 0.
        period: length of the recording; None for the last end.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> starts = [[0.0, 6.0], [2.0, 0.0]]
        >>> ends = [[1.0, 8.0], [3.0, 0.0]]
        >>> model = srp.clocks.Intervals(starts, ends)
        >>> state = model.init(jax.random.key(0), 2)
        >>> presence, _ = model.sample(jax.random.key(1), state, jnp.asarray(6.5))
        >>> presence.arrives.tolist(), presence.leaves.tolist()
        ([0.0, 3.5], [1.5, 4.5])
    """

    starts: Annotated[float | jax.Array | np.ndarray, AtLeast(0), Axes(2), _SHAPE]
    ends: Annotated[float | jax.Array | np.ndarray, AtLeast(0), Axes(2), _SHAPE]
    period: Annotated[float, Above(0)] | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.starts)
        if shape != np.shape(self.ends) or len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"intervals: starts and ends have the shapes {shape} and {np.shape(self.ends)}; "
                f"{_SHAPE} twice"
            )
        if any(
            isinstance(value, Tracer) for value in (self.starts, self.ends, self.period)
        ):
            return
        starts = np.asarray(self.starts)
        ends = np.asarray(self.ends)
        if (starts > ends).any():
            row, column = np.argwhere(starts > ends)[0].tolist()
            raise ValueError(
                f"intervals: starts[{row}, {column}] is after ends[{row}, {column}]; swap them"
            )
        if not (starts < ends).any():
            raise ValueError(
                "intervals: starts equal ends, so no client is ever available; "
                "give longer intervals"
            )
        if self.period is not None and np.min(self.period) < ends.max():
            raise ValueError(
                f"intervals: period={self.period} is before the last end, {ends.max()}; "
                "give at least that"
            )

    @override
    def init(self, key: Key, num_clients: int) -> tuple[()]:
        rows = np.shape(self.starts)[0]
        check_length("intervals: starts", rows, num_clients, "give one row per client")
        return ()

    @override
    def sample(
        self, key: Key, state: tuple[()], now: Array
    ) -> tuple[Presence, tuple[()]]:
        """The presence at the time since the recording last began."""
        starts = jnp.asarray(self.starts, dtype=float)
        ends = jnp.asarray(self.ends, dtype=float)
        period = jnp.max(ends) if self.period is None else self.period
        time = now % period
        is_real = starts < ends
        goes_on = (
            is_real & (starts <= time) & (time < ends - _rounding_error(now + period))
        )
        leaves = jnp.max(jnp.where(goes_on, ends - time, 0), axis=1)
        next_starts = jnp.where(starts > time, starts, starts + period)
        time_to_start = jnp.where(is_real, next_starts - time, jnp.inf)
        arrives = jnp.min(time_to_start, axis=1)
        is_next = time_to_start == arrives[:, None]
        next_length = jnp.max(jnp.where(is_next, ends - starts, 0), axis=1)
        is_on = goes_on.any(axis=1)
        leaves = jnp.where(is_on, leaves, arrives + next_length)
        return Presence(jnp.where(is_on, 0, arrives), leaves), state
