"""Memory of a traced function, from the variables that are alive at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# Their operands live until they are done.
PRODUCTS = ("dot_general", "conv_general_dilated")
# Made where they are read.
RECOMPUTED = ("broadcast_in_dim", "iota")


def peak_bytes(jaxpr: Jaxpr | ClosedJaxpr, owned: slice = slice(0)) -> int:
    """Estimate the bytes that a function needs at most besides its arguments: carries, activations, gradients, results.

    A variable lives from the equation that makes it to the last one that reads it, whose results may take its place.
    Elementwise results that only one elementwise equation reads are never stored. Programs that were compiled for a GPU
    take 0.6 to 1.2 times as much.

    Args:
        jaxpr: the traced function.
        owned: arguments to count as well, of which results may take the place.
    """
    jaxpr, _ = opened(jaxpr)
    last_reads, is_stored = _lifetimes(jaxpr)
    dying: dict[int, list[Any]] = {}
    for variable, position in last_reads.items():
        dying.setdefault(position, []).append(variable)
    alive = {v: bytes_of([v]) for v in jaxpr.invars[owned] if v in last_reads}
    total = peak = sum(alive.values())
    for position, equation in enumerate(jaxpr.eqns):
        name = equation.primitive.name
        results: Sequence[Any] = ()
        if is_stored[position] and name not in RECOMPUTED:
            results = equation.outvars
        before = total
        for variable in dying.get(position, ()):
            total -= alive.pop(variable, 0)
        needed = _bytes_of_equation(equation, results)
        peak = max(peak, (before if name in PRODUCTS else total) + needed)
        for variable in results:
            if variable in last_reads:
                alive[variable] = bytes_of([variable])
                total += alive[variable]
    return peak


def _lifetimes(jaxpr: Jaxpr) -> tuple[dict[Any, int], list[bool]]:
    """The position of the last equation that reads each variable, and True for equations whose result is stored.

    An elementwise equation whose result has one elementwise reader is fused with it, and reads where that one does.
    """
    equations = jaxpr.eqns
    end = len(equations)
    readers = {v: [end] for v in jaxpr.outvars if not isinstance(v, Literal)}
    is_stored = [True] * end
    for position in reversed(range(end)):
        equation = equations[position]
        reads_at = position
        if _is_elementwise(equation):
            of_result = readers.get(equation.outvars[0], [])
            is_read_once = len(of_result) == 1 and of_result[0] < end
            if is_read_once and _is_elementwise(equations[of_result[0]]):
                reads_at = of_result[0]
                is_stored[position] = False
        for variable in {v for v in equation.invars if not isinstance(v, Literal)}:
            readers.setdefault(variable, []).append(reads_at)
    return {
        variable: max(positions) for variable, positions in readers.items()
    }, is_stored


def _bytes_of_equation(equation: Any, results: Sequence[Any]) -> int:
    """Bytes that an equation needs at most: its results, or what its inner functions need."""
    params = equation.params
    if equation.primitive.name == "scan":
        body, _ = opened(params["jaxpr"])
        num_carry = unstacked(equation.outvars, body.outvars)
        num_consts = unstacked(equation.invars, body.invars) - num_carry
        # The carry is updated in its place.
        return bytes_of(results[num_carry:]) + peak_bytes(body, slice(num_consts, None))
    if equation.primitive.name == "while":
        return peak_bytes(params["body_jaxpr"], slice(params["body_nconsts"], None))
    inner = map(peak_bytes, inner_jaxprs(params.values()))
    return max([bytes_of(results), *inner])


def _is_elementwise(equation: Any) -> bool:
    """True if each number of the only result needs one of every operand, judged by shapes."""
    if len(equation.outvars) != 1 or equation.primitive.name in PRODUCTS:
        return False
    if any(inner_jaxprs(equation.params.values())):
        return False
    shapes = ((), equation.outvars[0].aval.shape)
    return all(v.aval.shape in shapes for v in equation.invars)


def bytes_of(variables: Sequence[Any]) -> int:
    """Bytes of variables of a traced function."""
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def opened(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    """A traced function and its constants."""
    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr.jaxpr, jaxpr.consts
    return jaxpr, ()


def unstacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """Number of a scan's values that its body takes or returns whole; of the others it has one row per trip."""
    pairs = zip(outside, inside, strict=True)
    return sum(out.aval.shape == one.aval.shape for out, one in pairs)


def inner_jaxprs(values: Any) -> Iterator[Jaxpr | ClosedJaxpr]:
    """Traced functions among the parameters of an equation."""
    for value in values:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from inner_jaxprs(value)
