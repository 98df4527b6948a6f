"""Checks of what users give to clocks; whatever is traced passes, since its values are not known yet."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def check_numbers(argument: str, value: Any, remedy: str, *, positive: bool = False, max_ndim: int = 1) -> None:
    """Raises a ValueError of one line unless `value` holds finite numbers >= 0 (> 0 if `positive`)."""
    if isinstance(value, Tracer):
        numbers, kind = None, value.dtype
    else:
        try:
            numbers = np.asarray(value)
        except ValueError:  # rows of unequal length
            raise ValueError(f"{argument} must be a rectangular array of numbers, got {value!r}; {remedy}") from None
        kind = numbers.dtype
    if not (jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer)):
        raise ValueError(f"{argument} must be of real numbers, got {value!r}; {remedy}")
    if np.ndim(value) > max_ndim:
        raise ValueError(f"{argument} must have at most {max_ndim} axes, got shape {np.shape(value)}; {remedy}")
    if numbers is None:
        return
    bad = ~np.isfinite(numbers) | (numbers <= 0 if positive else numbers < 0)
    if np.any(bad):
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" at index {index[0] if len(index) == 1 else index}" if index else ""
        sign = "positive" if positive else ">= 0"
        raise ValueError(f"{argument} must be finite and {sign}, got {numbers[index]}{place}; {remedy}")


def check_length(argument: str, length: int, num_clients: int, remedy: str) -> None:
    """Raises a ValueError of one line unless there is one entry per client."""
    if length != num_clients:
        raise ValueError(f"{argument} has {length} entries for num_clients={num_clients}; {remedy}")


def check_work(clock: str, work: Any) -> None:
    """Raises a ValueError of one line unless `work` is one finite number >= 0."""
    check_numbers(f"{clock}: work", work, "give the local work of a round, e.g. work=1.0", max_ndim=0)


def check_ordered(clock: str, ordered: Any) -> None:
    """Raises a ValueError of one line unless `ordered` is a bool."""
    if not isinstance(ordered, bool):
        raise ValueError(f"{clock}: ordered must be True or False, got {ordered!r}; ordered=True is by speed")
