"""`formula`: decorator that checks the arguments of a formula and records the kind of its value."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

import numpy as np

from fedjax_srp._checks import check_numbers, checked, is_number, short
from fedjax_srp.parts import Above, AtMost, Below

P = ParamSpec("P")
R = TypeVar("R")


Contraction = Annotated[
    float, Above(0), AtMost(0.25), "see Theorem 4.5; with eta <= 1/(8 sigma_max^2) it is at most 1/16"
]
Chat = Annotated[
    float, Above(1), Below(math.sqrt(2)), "the target must need all clients and be reachable: give e.g. 1.1"
]
KIND: dict[str, str] = {}  # name of a formula -> kind of its value, see `theory`


def formula(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record the kind of a formula, and raise a ValueError of one line for invalid arguments or undefined values."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        KIND[function.__name__] = kind
        return _with_checks(function)

    return decorate


def _with_checks(function: Callable[P, R]) -> Callable[P, R]:
    checked_function, signature = checked(function), inspect.signature(function)

    @functools.wraps(function)
    def checked_value(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, number in signature.bind(*args, **kwargs).arguments.items():
            if signature.parameters[name].annotation != "Count" and (
                is_number(number) or isinstance(number, np.ndarray)
            ):
                check_numbers(name, number, f"see the docstring of {function.__name__}")
        try:
            return checked_function(*args, **kwargs)
        except (ArithmeticError, LookupError, ValueError) as error:
            if ";" in str(error) or "=" in str(error):  # raised by our checks, with value and remedy
                raise
            given = ", ".join([*map(short, args), *(f"{name}={short(number)}" for name, number in kwargs.items())])
            reason = str(error)
        raise ValueError(f"{function.__name__}({given}) is undefined: {reason}; see its docstring for valid arguments")

    return checked_value
