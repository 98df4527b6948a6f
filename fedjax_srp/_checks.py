"""What bad input is answered with: one line that says what, which value, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from operator import index
from typing import Any


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not `known`: the nearest ones first, then what there is."""
    known = list(known)
    return ValueError(f"unknown {kind} {name!r}{nearest(name, known)}; choose from {', '.join(known)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint in brackets with the known names that look like `name`, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def check_integer(argument: str, value: Any, minimum: int) -> int:
    """`value` as an int, or a ValueError of one line unless it is an integer >= minimum."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{argument}={value!r} must be an integer known before tracing, at least {minimum}")
    if number < minimum:
        raise ValueError(f"{argument}={number} must be at least {minimum}")
    return number
