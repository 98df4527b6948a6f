"""Clocks: how long one unit of local work takes every client, in simulated time units."""

from fedjax_srp.clocks.distributions import Distribution, constant, exponential, uniform
from fedjax_srp.clocks.dynamic import dynamic
from fedjax_srp.clocks.fixed import fixed
from fedjax_srp.clocks.trace import trace

__all__ = ["Distribution", "constant", "dynamic", "exponential", "fixed", "trace", "uniform"]
