"""What bad input is answered with: one line that says what, which value, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from operator import index
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

INT32_MAX = 2**31 - 1  # what enters a program is int32


def short(value: Any) -> str:
    """`repr` in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not `known`: the nearest ones first, then what there is."""
    known = list(known)
    return ValueError(f"unknown {kind} {name!r}{nearest(name, known)}; choose from {', '.join(known)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint in brackets with the known names that look like `name`, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def check_choice(argument: str, value: Any, choices: Iterable[str]) -> str:
    """`value`, or a ValueError of one line unless it is one of the choices; the nearest ones come first."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        hint = nearest(value, choices)
        raise ValueError(f"{argument}={short(value)} is unknown{hint}; choose from {', '.join(choices)}")
    return value


def check_integer(argument: str, value: Any, minimum: int, maximum: int | None = INT32_MAX, otherwise: str = "") -> int:
    """`value` as an int, or a ValueError of one line unless it is an integer in minimum..maximum (None: no bound).

    `otherwise` says what the caller takes in place of an integer.
    """
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        or_else = f", or {otherwise}" if otherwise else ""
        traced = ", known before tracing" if isinstance(value, Tracer) else ""
        raise ValueError(f"{argument}={short(value)} must be an integer{traced}, at least {minimum}{or_else}")
    if number < minimum:
        raise ValueError(f"{argument}={number} must be at least {minimum}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{argument}={number} must be at most {maximum}")
    return number


def check_integers(argument: str, values: Any, minimum: int) -> tuple[int, ...]:
    """`values` as a tuple of ints, or a ValueError of one line unless they are integers of at least `minimum`."""
    if isinstance(values, str) or not np.iterable(values):
        raise ValueError(f"{argument}={short(values)} must be several integers; ({short(values)},) is one of them")
    return tuple(check_integer(f"{argument}[{i}]", value, minimum) for i, value in enumerate(values))


def check_numbers(argument: str, value: Any, remedy: str, *, positive: bool = False, max_ndim: int = 1) -> None:
    """Raises a ValueError of one line unless `value` holds finite numbers >= 0 (> 0 if `positive`).

    Whatever is traced passes, since its values are not known yet.
    """
    if isinstance(value, Tracer):
        numbers, kind = None, value.dtype
    else:
        try:
            numbers = np.asarray(value)
        except ValueError:  # rows of unequal length
            shown = short(value)
            raise ValueError(f"{argument} must be a rectangular array of numbers, got {shown}; {remedy}") from None
        kind = numbers.dtype
    if not (jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer)):
        raise ValueError(f"{argument} must be of real numbers, got {short(value)}; {remedy}")
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
