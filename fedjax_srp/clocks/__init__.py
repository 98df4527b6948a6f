"""Clocks: the simulated time of each client's local work, and the clients' availability."""

from collections.abc import Callable

from fedjax_srp.base import Clock
from fedjax_srp.clocks.availability import (
    Availability,
    DayNight,
    Intervals,
    Markov,
    Presence,
)
from fedjax_srp.clocks.available import Available, Failing
from fedjax_srp.clocks.devices import Devices
from fedjax_srp.clocks.distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
)
from fedjax_srp.clocks.dynamic import Dynamic
from fedjax_srp.clocks.fixed import Fixed
from fedjax_srp.clocks.trace import Trace
from fedjax_srp.clocks.traces import (
    AvailabilityTraces,
    DeviceTraces,
    read_availability,
    read_devices,
    read_times,
)
from fedjax_srp.parts.options import checked_maker

__all__ = [
    "Availability",
    "AvailabilityTraces",
    "Available",
    "Constant",
    "DayNight",
    "DeviceTraces",
    "Devices",
    "Distribution",
    "Dynamic",
    "Empirical",
    "Exponential",
    "Failing",
    "Fixed",
    "Intervals",
    "LogNormal",
    "Markov",
    "Presence",
    "Trace",
    "Uniform",
    "read_availability",
    "read_devices",
    "read_times",
    "register",
]

OWN: dict[str, Callable[..., Clock]] = {}  # clocks added by `register`
# words of the command line
WORDS = (
    "fixed",
    "random",
    "dynamic",
    "trace",
    "ordered",
    "available",
    "failing",
    "devices",
)


def register(name: str, maker: Callable[..., Clock]) -> None:
    """Register your own clock for the command line and grids, as `--clock name` or `name(2.0, N)`.

    Args:
        name: of the clock, a Python identifier.
        maker: a class of clocks, or a function that returns a clock. The text in brackets has its
            arguments: numbers, distributions, quoted texts, N for the number of clients, positional
            or by name.

    Example:
        >>> import fedjax_srp as srp
        >>> def two_speeds(slow: float = 5.0):
        ...     return srp.clocks.Fixed(srp.clocks.Uniform(1.0, slow))
        >>> srp.clocks.register("two_speeds", two_speeds)  # fedjax-srp run --clock "two_speeds(9)"
        >>> del srp.clocks.OWN["two_speeds"]
    """
    clock_maker = checked_maker("clock", name, maker, Clock, WORDS)
    if not name.isidentifier():
        raise ValueError(f"name={name!r} is no word; give a name such as rush_hour")
    OWN[name] = clock_maker
