"""Memory of a traced function, from the variables that are alive at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

PRODUCTS = (
    "dot_general",
    "conv_general_dilated",
)  # their operands live until they are done
RECOMPUTED = ("broadcast_in_dim", "iota")  # where they are read


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
    equations, end = jaxpr.eqns, len(jaxpr.eqns)
    readers: dict[Any, list[int]] = {
        v: [end] for v in jaxpr.outvars if not isinstance(v, Literal)
    }
    stored = [True] * end
    for position, equation in reversed([*enumerate(equations)]):
        at = position  # where its operands are read: for a fused one, where the stored result is made
        if _is_elementwise(equation):
            of_result = readers.get(equation.outvars[0], [])
            if (
                len(of_result) == 1
                and of_result[0] < end
                and _is_elementwise(equations[of_result[0]])
            ):
                at, stored[position] = of_result[0], False
        for read in {v for v in equation.invars if not isinstance(v, Literal)}:
            readers.setdefault(read, []).append(at)
    last_reads: dict[int, list[Any]] = {}
    for variable, positions in readers.items():
        last_reads.setdefault(max(positions), []).append(variable)
    alive: dict[Any, int] = {
        v: bytes_of([v]) for v in jaxpr.invars[owned] if v in readers
    }
    total = peak = sum(alive.values())
    for position, equation in enumerate(equations):
        name, params = equation.primitive.name, equation.params
        made = equation.outvars if stored[position] and name not in RECOMPUTED else []
        before = total
        total -= sum(alive.pop(variable, 0) for variable in last_reads.get(position, ()))
        if name == "scan":  # the carry is updated in its place
            body = opened(params["jaxpr"])[0]
            carried = unstacked(equation.outvars, body.outvars)
            constants = unstacked(equation.invars, body.invars) - carried
            needed = bytes_of(made[carried:]) + peak_bytes(body, slice(constants, None))
        elif name == "while":
            needed = peak_bytes(params["body_jaxpr"], slice(params["body_nconsts"], None))
        else:
            needed = max(
                [bytes_of(made), *map(peak_bytes, inner_jaxprs(params.values()))]
            )
        peak = max(peak, (before if name in PRODUCTS else total) + needed)
        alive |= {v: bytes_of([v]) for v in made if v in readers}
        total += sum(alive[v] for v in made if v in readers)
    return peak


def _is_elementwise(equation: Any) -> bool:
    """True if each number of the only result needs one of every operand, judged by shapes."""
    if (
        len(equation.outvars) != 1
        or equation.primitive.name in PRODUCTS
        or any(inner_jaxprs(equation.params.values()))
    ):
        return False
    return all(
        v.aval.shape in ((), equation.outvars[0].aval.shape) for v in equation.invars
    )


def bytes_of(variables: list[Any]) -> int:
    """Bytes of variables of a traced function."""
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def opened(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    """A traced function and its constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, ())


def unstacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """Number of a scan's values that its body takes or returns whole; of the others it has one row per trip."""
    return sum(
        out.aval.shape == one.aval.shape for out, one in zip(outside, inside, strict=True)
    )


def inner_jaxprs(values: Any) -> Iterator[Jaxpr | ClosedJaxpr]:
    """Traced functions among the parameters of an equation."""
    for value in values:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from inner_jaxprs(value)
