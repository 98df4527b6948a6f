"""Dependence: the inputs that a traced function reads for each of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_srp.base import PyTree


class Dependence(NamedTuple):
    """The shapes of a function's result, and what it depends on."""

    result: PyTree  # of shapes
    reads: list[
        frozenset[int]
    ]  # of each leaf: positions among the leaves of the arguments


def dependence(function: Callable[..., PyTree], *args: PyTree) -> Dependence:
    """Trace a function and follow its inputs; one that is found may cancel, one that is not found has no effect."""
    traced, result = jax.make_jaxpr(function, return_shape=True)(*args)
    program = traced.jaxpr
    inputs = [frozenset([position]) for position in range(len(program.invars))]
    return Dependence(result, _followed(program, inputs))


def _followed(program: Any, inputs: list[frozenset[int]]) -> list[frozenset[int]]:
    # by identity, since literals have no hash
    reads = {id(v): read for v, read in zip(program.invars, inputs, strict=True)}

    def of(variables: Any) -> list[frozenset[int]]:
        return [reads.get(id(variable), frozenset()) for variable in variables]

    for equation in program.eqns:
        read = of(equation.invars)
        if equation.primitive.name in ("jit", "pjit"):
            outputs = _followed(equation.params["jaxpr"].jaxpr, read)
        else:
            outputs = [frozenset().union(*read)] * len(equation.outvars)
        reads |= {id(v): out for v, out in zip(equation.outvars, outputs, strict=True)}
    return of(program.outvars)
