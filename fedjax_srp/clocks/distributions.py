"""Distributions of clients' times, with parameters that may differ between clients.

(num_clients,) arrays are indexed by client id. `parameters` draws the permanent values of a client,
such as its rate, once; `sample` draws its times in each round.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import override

from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.parts.part import Above, AtLeast, part, undefined


@part
class Distribution:
    """A distribution over times >= 0 for every client.

    A subclass is a part whose fields are its parameters.

    Attributes:
        name: by default the class name in lower case.
    """

    remedy: ClassVar[str] = (
        "give one of srp.clocks, e.g. Exponential(rate=1.0), or Constant(times) for times of your own"
    )
    name: ClassVar[str] = "distribution"

    def parameters(self, key: Key, num_clients: int) -> PyTree:
        """The parameters of every client, drawn once: a pytree of (num_clients,) float arrays."""
        undefined(self.parameters)

    def sample(self, key: Key, parameters: PyTree) -> Array:
        """Times, (num_clients,) float, independent between clients."""
        undefined(self.sample)

    def mean(self, parameters: PyTree) -> Array:
        """The mean time of every client, (num_clients,) float."""
        undefined(self.mean)


# a number, one per client, or drawn once per client
Parameter = float | jax.Array | np.ndarray | Distribution
Work = Annotated[float, AtLeast(0), "give the local work of a round, e.g. work=1.0"]
Cost = Annotated[float, AtLeast(0), "give a time, e.g. communication=10.0"]


def check_length(argument: str, length: int, num_clients: int, remedy: str) -> None:
    """Raise a ValueError unless there is one entry per client."""
    if length != num_clients:
        raise ValueError(
            f"{argument} has {length} entries for num_clients={num_clients}; {remedy}"
        )


class UniformParameters(NamedTuple):
    """The interval of every client."""

    low: Array  # (num_clients,) float
    high: Array  # (num_clients,) float


def draw(key: Key, distribution: Distribution, num_clients: int) -> Array:
    """Draw parameters and then one value per client: (num_clients,) float."""
    parameters = distribution.parameters(named_key(key, "parameters"), num_clients)
    return distribution.sample(named_key(key, "sample"), parameters)


def per_client(of: Any, field: str, key: Key, num_clients: int) -> Array:
    """A parameter of a part as (num_clients,) float: given numbers, or drawn ones."""
    value = getattr(of, field)
    if isinstance(value, Distribution):
        return draw(key, value, num_clients)
    values = jnp.asarray(value, dtype=float)
    if values.ndim:
        remedy = "give one number, or one entry per client"
        check_length(f"{of.name}: {field}", values.shape[0], num_clients, remedy)
    return jnp.broadcast_to(values, (num_clients,))


@part
class Exponential(Distribution):
    """Exponential times of mean 1 / rate: the clock of SRPFL's analysis.

    Drawn in float32 from 23 random bits, a time is at most 15.9 / rate. The slowest of N clients
    takes H_N / rate on average; drawn times are 0.1 % too short at most up to N = 10^5, 1 % at 10^6
    and 6 % at 10^7.

    With rates drawn from U[1/N, 1] for N clients, `Exponential(Uniform(1 / N, 1))` under `Dynamic`
    is the random clock of SRPFL's experiments (section 5).

    Args:
        rate: lambda, units of local work per time unit: a number, one per client, or a distribution
            drawn once per client.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> distribution = srp.clocks.Exponential(srp.clocks.Uniform(1 / 100, 1))
        >>> rates = distribution.parameters(jax.random.key(0), 100)
        >>> bool((distribution.mean(rates) == 1 / rates).all())
        True
    """

    rate: Annotated[
        Parameter,
        Above(0),
        "give units of work per time unit, e.g. Exponential(rate=1.0)",
    ] = 1.0

    @override
    def parameters(self, key: Key, num_clients: int) -> Array:
        return per_client(self, "rate", key, num_clients)

    @override
    def sample(self, key: Key, parameters: Array) -> Array:
        return (
            jax.random.exponential(key, parameters.shape, parameters.dtype) / parameters
        )

    @override
    def mean(self, parameters: Array) -> Array:
        return 1 / parameters


@part
class Constant(Distribution):
    """The same time in every round: a number, one per client, or drawn once per client.

    Args:
        value: T_i in time units: a number, one per client, or a distribution drawn once per client.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> clock = srp.clocks.Fixed(srp.clocks.Constant([3.0, 1.0, 2.0]))
        >>> clock.init(jax.random.key(0), 3).times.tolist()
        [3.0, 1.0, 2.0]
    """

    value: Annotated[Parameter, AtLeast(0), "give a time, e.g. Constant(1.0)"]

    @override
    def parameters(self, key: Key, num_clients: int) -> Array:
        return per_client(self, "value", key, num_clients)

    @override
    def sample(self, key: Key, parameters: Array) -> Array:
        return parameters

    @override
    def mean(self, parameters: Array) -> Array:
        return parameters


@part
class Uniform(Distribution):
    """Times uniform between `low` and `high`, such as those of FLANP on [50, 500].

    Args:
        low: smallest time, in time units: a number, one per client, or a distribution drawn once
            per client.
        high: largest time, likewise. If the bounds are drawn, `low` may be above `high`: times lie
            between the two.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> distribution = srp.clocks.Uniform(50, 500)
        >>> distribution.mean(distribution.parameters(jax.random.key(0), 2)).tolist()
        [275.0, 275.0]
    """

    low: Annotated[Parameter, AtLeast(0), "give the smallest time, e.g. Uniform(50, 500)"]
    high: Annotated[Parameter, AtLeast(0), "give the largest time, e.g. Uniform(50, 500)"]

    def __post_init__(self) -> None:
        if isinstance(self.low, Distribution | Tracer) or isinstance(
            self.high, Distribution | Tracer
        ):
            return
        try:
            lows, highs = np.broadcast_arrays(self.low, self.high)
        except ValueError:  # other lengths, which are checked with num_clients
            return
        wrong = np.flatnonzero(lows > highs)
        if wrong.size:
            i = wrong[0]
            place = f" at index {i}" if lows.ndim else ""
            raise ValueError(
                f"uniform: low must not exceed high, got low={lows.flat[i]} and "
                f"high={highs.flat[i]}{place}; swap them or widen the interval"
            )

    @override
    def parameters(self, key: Key, num_clients: int) -> UniformParameters:
        return UniformParameters(
            low=per_client(self, "low", named_key(key, "low"), num_clients),
            high=per_client(self, "high", named_key(key, "high"), num_clients),
        )

    @override
    def sample(self, key: Key, parameters: UniformParameters) -> Array:
        low, high = parameters
        return low + (high - low) * jax.random.uniform(key, low.shape, low.dtype)

    @override
    def mean(self, parameters: UniformParameters) -> Array:
        return (parameters.low + parameters.high) / 2


class LogNormalParameters(NamedTuple):
    """The median of every client, and sigma, the spread around it."""

    median: Array  # (num_clients,) float
    sigma: Array  # (num_clients,) float


@part
class LogNormal(Distribution):
    """Times median * exp(sigma * z), z standard normal, for devices whose speeds differ by factors.

    The mean is median * exp(sigma ** 2 / 2). sigma = 0.7 is close to the speeds of phones; sigma =
    0 is `Constant`.

    Args:
        median: in time units: a number, one per client, or a distribution drawn once per client.
        sigma: standard deviation of the logarithm, likewise.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> distribution = srp.clocks.LogNormal(2.0, 0.0)
        >>> distribution.mean(distribution.parameters(jax.random.key(0), 2)).tolist()
        [2.0, 2.0]
    """

    median: Annotated[Parameter, Above(0), "give a time, e.g. LogNormal(1.0, 0.5)"] = 1.0
    sigma: Annotated[
        Parameter,
        AtLeast(0),
        "give the standard deviation of the logarithm, e.g. LogNormal(1.0, 0.5)",
    ] = 0.5

    @override
    def parameters(self, key: Key, num_clients: int) -> LogNormalParameters:
        return LogNormalParameters(
            median=per_client(self, "median", named_key(key, "median"), num_clients),
            sigma=per_client(self, "sigma", named_key(key, "sigma"), num_clients),
        )

    @override
    def sample(self, key: Key, parameters: LogNormalParameters) -> Array:
        median, sigma = parameters
        return median * jnp.exp(
            sigma * jax.random.normal(key, median.shape, median.dtype)
        )

    @override
    def mean(self, parameters: LogNormalParameters) -> Array:
        return parameters.median * jnp.exp(parameters.sigma**2 / 2)


@part
class Empirical(Distribution):
    """Measured times, drawn uniformly: one for each client, or one in every round.

    `Fixed(Empirical(times))` draws a measured device for every client, with replacement, for the
    whole run.

    Args:
        values: (n,) in time units, or speeds for clocks of speeds.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> clock = srp.clocks.Fixed(srp.clocks.Empirical([1.0, 7.0]))
        >>> set(clock.init(jax.random.key(0), 20).times.tolist())
        {1.0, 7.0}
    """

    values: Annotated[
        float | jax.Array | np.ndarray,
        AtLeast(0),
        "give measured times, e.g. Empirical([1.0, 2.5])",
    ]

    def __post_init__(self) -> None:
        if np.ndim(self.values) != 1 or not np.size(self.values):
            raise ValueError(
                f"values has shape {np.shape(self.values)}; "
                "give measured times, e.g. Empirical([1.0, 2.5])"
            )

    @override
    def parameters(self, key: Key, num_clients: int) -> Array:
        """The mean of all values, for each client."""
        return jnp.broadcast_to(
            jnp.mean(jnp.asarray(self.values, dtype=float)), (num_clients,)
        )

    @override
    def sample(self, key: Key, parameters: Array) -> Array:
        values = jnp.asarray(self.values, dtype=float)
        return values[jax.random.randint(key, parameters.shape, 0, values.shape[0])]

    @override
    def mean(self, parameters: Array) -> Array:
        return parameters
