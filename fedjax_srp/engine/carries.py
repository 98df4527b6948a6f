"""Sizes of loop carries, which in local training hold the parameters and the optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def largest_carry(jaxpr: Jaxpr | ClosedJaxpr) -> int:
    """Bytes of the largest carry of a loop in a traced function, 0 without loops."""
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr = jaxpr.jaxpr
    largest = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "while":
            first = params["cond_nconsts"] + params["body_nconsts"]
            largest = max(largest, bytes_of(equation.invars[first:]))
        elif name == "scan":
            body: Any = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])  # stacked outputs have one more axis outside
            outer: list[Any] = list(equation.outvars)
            same = [out for out, one in zip(outer, body.outvars, strict=True) if out.aval.shape == one.aval.shape]
            largest = max(largest, bytes_of(same))
        largest = max([largest, *(largest_carry(inner) for inner in inner_jaxprs(params.values()))])
    return largest


def bytes_of(variables: list[Any]) -> int:
    """Bytes of variables of a traced function."""
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def inner_jaxprs(values: Any) -> Iterator[Jaxpr | ClosedJaxpr]:
    """Traced functions among the parameters of an equation."""
    for value in values:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from inner_jaxprs(value)
