"""Checks of clocks' arguments."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fedjax_srp._checks import check_numbers
from fedjax_srp.parts import is_part


def check_length(argument: str, length: int, num_clients: int, remedy: str) -> None:
    """Raise a ValueError of one line unless there is one entry per client."""
    if length != num_clients:
        raise ValueError(f"{argument} has {length} entries for num_clients={num_clients}; {remedy}")


def check_costs(clock: Any) -> None:
    """Make `work` and `communication` of a clock floats, or raise a ValueError of one line.

    Each must be one finite number >= 0.
    """
    check_numbers(f"{clock.name}: work", clock.work, "give the local work of a round, e.g. work=1.0", max_ndim=0)
    check_numbers(
        f"{clock.name}: communication", clock.communication, "give a time, e.g. communication=10.0", max_ndim=0
    )
    set_floats(clock, "work", "communication")


def set_floats(part: Any, *names: str) -> None:
    """Convert numbers and lists to floats or arrays of floats; call it in `__post_init__`."""
    for name in names:
        object.__setattr__(part, name, _as_floats(getattr(part, name)))


def _as_floats(value: Any) -> Any:
    """A parameter as the engine passes it: a float or an array of floats; distributions are unchanged."""
    if isinstance(value, Tracer | jax.Array) or is_part(value):
        return value
    return float(value) if np.ndim(value) == 0 else np.asarray(value, float)
