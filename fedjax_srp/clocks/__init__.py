"""Clocks: how long one unit of local work takes every client, in simulated time units."""

from collections.abc import Callable

from fedjax_srp.base import Clock
from fedjax_srp.clocks.distributions import Distribution, constant, exponential, uniform
from fedjax_srp.clocks.dynamic import dynamic
from fedjax_srp.clocks.fixed import fixed
from fedjax_srp.clocks.trace import trace
from fedjax_srp.parts import own_factory

__all__ = ["Distribution", "constant", "dynamic", "exponential", "fixed", "register", "trace", "uniform"]

OWN: dict[str, Callable[..., Clock]] = {}  # those that `register` adds
WORDS = ("fixed", "random", "dynamic", "trace", "ordered")  # the command line's


def register(name: str, factory: Callable[..., Clock]) -> None:
    """Adds a clock of your own: the command line and grids know it from then on, as `--clock name` or `name(2.0, N)`.

    Args:
        name: of the clock, a word as names of Python are.
        factory: makes the clock. What stands between the brackets goes to it: numbers, distributions, texts in quotes,
            N for the number of clients, by place or by name. They stand in the record of a run, and equal ones give the
            same clock.

    Raises:
        ValueError: a word of the command line, no word, or a factory whose arguments cannot be given by name.

    Example:
        >>> import fedjax_srp as srp
        >>> def two_speeds(slow: float = 5.0):
        ...     return srp.clocks.fixed(srp.clocks.uniform(1.0, slow))._replace(name="two_speeds")
        >>> srp.clocks.register("two_speeds", two_speeds)  # fedjax-srp run --load FILE --clock "two_speeds(9)"
        >>> del srp.clocks.OWN["two_speeds"]
    """
    made = own_factory("clock", name, factory, Clock, WORDS)
    if not name.isidentifier():
        raise ValueError(f"name={name!r} is no word; give a name such as rush_hour")
    OWN[name] = made
