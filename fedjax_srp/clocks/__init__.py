"""Clocks: the simulated time of each client's local work, and the clients' availability."""

from fedjax_srp.clocks.availability import (
    Availability,
    DayNight,
    Intervals,
    Markov,
    Presence,
)
from fedjax_srp.clocks.available import Available, Failing
from fedjax_srp.clocks.by_name import CLOCKS, register
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
from fedjax_srp.clocks.redrawn import Redrawn
from fedjax_srp.clocks.trace import Trace
from fedjax_srp.clocks.traces import (
    AvailabilityTraces,
    DeviceTraces,
    read_availability,
    read_devices,
    read_times,
)

__all__ = [
    "CLOCKS",
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
    "Redrawn",
    "Trace",
    "Uniform",
    "read_availability",
    "read_devices",
    "read_times",
    "register",
]
