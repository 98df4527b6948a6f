"""Distributions of clients' times, with parameters that may differ between clients.

Position in every (num_clients,) array is the client id. Randomness that belongs to a client for good (its rate) is
drawn by `parameters`, once; what changes from round to round is drawn by `sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial
from jax.typing import ArrayLike

from fedjax_srp._checks import check_numbers
from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.clocks._checks import check_length
from fedjax_srp.record import recorded


class Distribution(NamedTuple):
    """A distribution over times >= 0 for every client.

    Attributes:
        name: as the factory's.
        parameters: `(key, num_clients) -> parameters`, a pytree of (num_clients,) float arrays, drawn once.
        sample: `(key, parameters) -> (num_clients,) float`, independent between clients.
        mean: `parameters -> (num_clients,) float`.
        options: what made it, by name; None: unknown.
    """

    name: str
    parameters: Callable[[Key, int], PyTree]
    sample: Callable[[Key, PyTree], Array]
    mean: Callable[[PyTree], Array]
    options: Mapping[str, Any] | None = None


Parameter = ArrayLike | Distribution


class UniformParameters(NamedTuple):
    """The interval of every client."""

    low: Array  # (num_clients,) float
    high: Array  # (num_clients,) float


def draw(key: Key, distribution: Distribution, num_clients: int) -> Array:
    """One value per client, parameters included: (num_clients,) float."""
    parameters = distribution.parameters(named_key(key, "parameters"), num_clients)
    return distribution.sample(named_key(key, "sample"), parameters)


class _Argument(NamedTuple):
    """A parameter of a factory: checked when the factory is called, and again once drawn."""

    name: str
    remedy: str
    positive: bool = False

    def check(self, value: Any) -> None:
        if not isinstance(value, Distribution):
            check_numbers(self.name, value, self.remedy, positive=self.positive)

    def per_client(self, value: Parameter, key: Key, num_clients: int) -> Array:
        if isinstance(value, Distribution):
            drawn = draw(key, value, num_clients)
            self.check(drawn)
            return drawn
        values = jnp.asarray(value, dtype=float)
        if values.ndim:
            check_length(self.name, values.shape[0], num_clients, "give one number, or one entry per client")
        return jnp.broadcast_to(values, (num_clients,))


_RATE = _Argument("exponential: rate", "give units of work per time unit, e.g. exponential(rate=1.0)", True)
_VALUE = _Argument("constant: value", "give a time, e.g. constant(1.0)")
_LOW = _Argument("uniform: low", "give the smallest time, e.g. uniform(50, 500)")
_HIGH = _Argument("uniform: high", "give the largest time, e.g. uniform(50, 500)")


def as_floats(value: Any) -> Any:
    """A parameter as the engine passes it along: a float or an array of floats; a distribution carries its own."""
    if isinstance(value, Distribution | Tracer | jax.Array):
        return value
    return float(value) if np.ndim(value) == 0 else np.asarray(value, float)


@recorded
def exponential(rate: Parameter = 1.0) -> Distribution:
    """Exponential times of mean 1 / rate: the clock of SRPFL's analysis.

    Drawn in float32 from 23 random bits, a time is at most 15.9 / rate. The slowest of N clients takes H_N on average;
    up to N = 10^5 that is exact within a tenth of a per cent, at 10^6 it is 1 % too short and at 10^7 6 %.

    With rates drawn from U[1/N, 1] for N clients, `exponential(uniform(1 / N, 1))` under `dynamic` is the random clock
    of SRPFL's experiments (section 5).

    Args:
        rate: lambda, units of local work per time unit: a number, one per client, or a distribution drawn once per
            client.

    Returns:
        The distribution.

    Raises:
        ValueError: for a rate that is not positive and finite.

    Example:
        >>> import jax
        >>> from fedjax_srp import clocks
        >>> distribution = clocks.exponential(clocks.uniform(1 / 100, 1))
        >>> rates = distribution.parameters(jax.random.key(0), 100)
        >>> bool((distribution.mean(rates) == 1 / rates).all())
        True
    """
    _RATE.check(rate)

    return Distribution("exponential", Partial(_RATE.per_client, as_floats(rate)), _sample_exponential, _inverse)


def _sample_exponential(key: Key, rates: Array) -> Array:
    return jax.random.exponential(key, rates.shape, rates.dtype) / rates


def _inverse(rates: Array) -> Array:
    return 1 / rates


@recorded
def constant(value: Parameter) -> Distribution:
    """The same time whenever it is asked for: a number, one per client, or drawn once per client.

    Args:
        value: T_i in time units: a number, one per client, or a distribution drawn once per client.

    Returns:
        The distribution.

    Raises:
        ValueError: for a time that is negative or not finite.

    Example:
        >>> import jax
        >>> from fedjax_srp import clocks
        >>> clock = clocks.fixed(clocks.constant([3.0, 1.0, 2.0]))
        >>> clock.init(jax.random.key(0), 3).times.tolist()
        [3.0, 1.0, 2.0]
    """
    _VALUE.check(value)
    return Distribution("constant", Partial(_VALUE.per_client, as_floats(value)), _sample_constant, _itself)


def _sample_constant(key: Key, values: Array) -> Array:
    del key
    return values


def _itself(values: Array) -> Array:
    return values


@recorded
def uniform(low: Parameter, high: Parameter) -> Distribution:
    """Times uniform between `low` and `high`, as FLANP's speeds on [50, 500].

    Args:
        low: smallest time, in time units: a number, one per client, or a distribution drawn once per client.
        high: largest time, likewise.

    Returns:
        The distribution.

    Raises:
        ValueError: for bounds that are negative or not finite, or low > high where both are known beforehand. Bounds
            that a run draws may cross: times are uniform between the two, whichever is larger.

    Example:
        >>> import jax
        >>> from fedjax_srp import clocks
        >>> distribution = clocks.uniform(50, 500)
        >>> distribution.mean(distribution.parameters(jax.random.key(0), 2)).tolist()
        [275.0, 275.0]
    """
    _LOW.check(low)
    _HIGH.check(high)
    _check_interval(low, high)

    return Distribution("uniform", Partial(_interval, as_floats(low), as_floats(high)), _sample_uniform, _middle)


def _interval(low: Parameter, high: Parameter, key: Key, num_clients: int) -> UniformParameters:
    lows = _LOW.per_client(low, named_key(key, "low"), num_clients)
    highs = _HIGH.per_client(high, named_key(key, "high"), num_clients)
    _check_interval(lows, highs)
    return UniformParameters(lows, highs)


def _sample_uniform(key: Key, interval: UniformParameters) -> Array:
    low, high = interval
    return low + (high - low) * jax.random.uniform(key, low.shape, low.dtype)


def _middle(interval: UniformParameters) -> Array:
    return (interval.low + interval.high) / 2


def _check_interval(low: Any, high: Any) -> None:
    """Raises unless low <= high wherever both are known; bounds of unequal length wait until num_clients is known."""
    if isinstance(low, Distribution | Tracer) or isinstance(high, Distribution | Tracer):
        return
    if np.ndim(low) and np.ndim(high) and np.shape(low) != np.shape(high):
        return
    lows, highs = np.broadcast_arrays(np.asarray(low), np.asarray(high))
    bad = np.flatnonzero(lows > highs)
    if bad.size:
        pair = f"low={lows.flat[bad[0]]} and high={highs.flat[bad[0]]}" + (f" at index {bad[0]}" if lows.ndim else "")
        raise ValueError(f"uniform: low must not exceed high, got {pair}; swap them or widen the interval")
