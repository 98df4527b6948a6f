"""Checks of arguments for every formula."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from fedjax_srp._checks import check_numbers, checked, is_number, short

P = ParamSpec("P")
R = TypeVar("R")


def formula(function: Callable[P, R]) -> Callable[P, R]:
    """Make a formula refuse, in one line, arguments that are not numbers or for which it is undefined."""
    checking, signature = checked(function, least=1), inspect.signature(function)

    @functools.wraps(function)
    def value(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, number in signature.bind(*args, **kwargs).arguments.items():
            if signature.parameters[name].annotation != "int" and (is_number(number) or isinstance(number, np.ndarray)):
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
