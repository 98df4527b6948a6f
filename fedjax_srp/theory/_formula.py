"""`formula`: decorator that checks the arguments of a formula and records the kind of its value."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.part import Above, AtLeast, AtMost, Below

P = ParamSpec("P")
R = TypeVar("R")


Positive = Annotated[float, Above(0), Below(math.inf)]
NonNegative = Annotated[float, AtLeast(0), Below(math.inf)]
Contraction = Annotated[
    float,
    Above(0),
    AtMost(0.25),
    "see Theorem 4.5; with eta <= 1/(8 sigma_max^2) it is at most 1/16",
]
Chat = Annotated[
    float,
    Above(1),
    Below(math.sqrt(2)),
    "the target must need all clients and be reachable: give e.g. 1.1",
]
KIND: dict[str, str] = {}  # name of a formula -> kind of its value, see `theory`


def formula(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record the kind of a formula, and check its arguments and that its value is defined."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        KIND[name] = kind
        checked_function = checked(function)

        @functools.wraps(function)
        def defined(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return checked_function(*args, **kwargs)
            except ArithmeticError as error:
                raise ValueError(
                    f"{name} is undefined for these arguments: {error}"
                ) from error

        return defined

    return decorate
