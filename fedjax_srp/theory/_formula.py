"""Checks of arguments for every formula, and the rating of its value."""

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
    float, Above(1), Below(math.sqrt(2)), "the target has to need all clients, and be in reach: give e.g. 1.1"
]
KIND: dict[str, str] = {}  # formula -> what its value is, see `theory`


def formula(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a formula of this kind refuse, in one line, arguments that are no numbers or for which it is undefined."""

    def rated(function: Callable[P, R]) -> Callable[P, R]:
        KIND[function.__name__] = kind
        return _checking(function)

    return rated


def _checking(function: Callable[P, R]) -> Callable[P, R]:
    checking, signature = checked(function), inspect.signature(function)

    @functools.wraps(function)
    def value(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, number in signature.bind(*args, **kwargs).arguments.items():
            if signature.parameters[name].annotation != "Count" and (
                is_number(number) or isinstance(number, np.ndarray)
            ):
                check_numbers(name, number, f"{function.__name__} takes such")
        try:
            return checking(*args, **kwargs)
        except (ArithmeticError, LookupError, ValueError) as error:
            if ";" in str(error) or "=" in str(error):  # our own, which name value and remedy
                raise
            given = ", ".join([*map(short, args), *(f"{name}={short(number)}" for name, number in kwargs.items())])
            reason = str(error)
        raise ValueError(f"{function.__name__}({given}) has no value: {reason}; see its docstring for what it takes")

    return value
