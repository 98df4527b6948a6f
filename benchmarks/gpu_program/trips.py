"""Number of trips of every loop of a program, by evaluating nothing but loop bounds.

The compiler does not know most bounds (they depend on the cohort and the clients' sizes), and so it cannot tell how
often a kernel runs. Here the traced program is evaluated lazily: a value is computed only if a bound depends on it.
Examples and models are never computed, so their arguments may be shapes without values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

Place = tuple[tuple[str, int], ...]  # file and line of the calls that lead to a loop, innermost first


class Loop(NamedTuple):
    """A loop of a program."""

    place: Place
    trips: int


class Lazy:
    """A value that is computed once, when it is needed."""

    def __init__(self, compute: Callable[[], Any]):
        self._compute: Callable[[], Any] | None = compute
        self._value: Any = None

    def force(self) -> Any:
        """The value.

        Raises:
            ValueError: it depends on an argument without values.
        """
        if self._compute is not None:
            self._value, self._compute = self._compute(), None
        return self._value


def given(leaf: Any) -> Lazy:
    """An argument: an array, or a shape, whose value raises an error when it is needed."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return Lazy(lambda: leaf)

    def refuse() -> Any:
        raise ValueError(f"a loop's bound depends on an argument of shape {leaf.shape}; give its values")

    return Lazy(refuse)


def loops_of(jaxpr: ClosedJaxpr, arguments: Sequence[Lazy], package: str) -> tuple[list[Loop], list[Lazy]]:
    """Loops of a program without a constant number of trips, with this number, and the results of the program.

    A nested loop is counted in the first trip of the outer one.

    Args:
        jaxpr: of the program, for one device.
        arguments: its flat arguments.
        package: folder whose files' frames identify loops.

    Raises:
        ValueError: a bound that depends on an argument without values; a primitive for several devices.
    """
    found: list[Loop] = []
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 100_000))
    try:
        return found, _Evaluator(package, found).closed(jaxpr, list(arguments))
    finally:
        sys.setrecursionlimit(limit)


class _Evaluator:
    """Evaluates programs lazily; appends the loops that it meets to `found`, unless that is None."""

    def __init__(self, package: str, found: list[Loop] | None):
        self.package, self.found = package, found

    def closed(self, jaxpr: ClosedJaxpr, arguments: list[Lazy]) -> list[Lazy]:
        return self.open(jaxpr.jaxpr, [given(const) for const in jaxpr.consts], arguments)

    def open(self, jaxpr: Jaxpr, consts: list[Lazy], arguments: list[Lazy]) -> list[Lazy]:
        known: dict[Any, Lazy] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
        read = lambda atom: given(atom.val) if isinstance(atom, Literal) else known[atom]  # noqa: E731
        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Lazy]) -> list[Lazy]:
        name, params = equation.primitive.name, equation.params
        if name == "while":
            return self.loop(equation, inputs)
        if name == "scan":
            return self.scan(equation, inputs)
        if name == "cond":
            return self.branches(params["branches"], inputs)
        if inner := next((params[key] for key in ("call_jaxpr", "jaxpr", "call", "fun_jaxpr") if key in params), None):
            if isinstance(inner, ClosedJaxpr):
                return self.closed(inner, inputs)
            return self.open(inner, [], inputs)
        return _later(lambda: self.compute(equation, inputs), len(equation.outvars))

    def compute(self, equation: Any, inputs: list[Lazy]) -> list[Any]:
        results = equation.primitive.bind(*[value.force() for value in inputs], **equation.params)
        return list(results) if equation.primitive.multiple_results else [results]

    def loop(self, equation: Any, inputs: list[Lazy]) -> list[Lazy]:
        params = equation.params
        in_condition, in_body = params["cond_nconsts"], params["body_nconsts"]
        of_condition, rest = inputs[:in_condition], inputs[in_condition:]
        of_body, carry = rest[:in_body], rest[in_body:]

        def run(evaluator: _Evaluator, trips: int | None) -> tuple[int, list[Lazy]]:
            state, done = carry, 0
            silent = _Evaluator(self.package, None)
            while done != trips and silent.closed(params["cond_jaxpr"], of_condition + state)[0].force():
                state = (evaluator if done == 0 else silent).closed(params["body_jaxpr"], of_body + state)
                done += 1
            return done, state

        if self.found is None:
            return _later(lambda: [value.force() for value in run(self, None)[1]], len(carry))
        place = len(self.found)
        done, state = run(self, None)
        self.found.insert(place, Loop(_place(equation, self.package), done))
        return state

    def scan(self, equation: Any, inputs: list[Lazy]) -> list[Lazy]:
        """A loop over rows, with a constant number of trips."""
        params, body = equation.params, equation.params["jaxpr"]
        shape = lambda variable: variable.aval.shape  # noqa: E731
        # Rows and collected results have one more axis outside; versions of JAX differ in how they give their number.
        num_rows = sum(shape(a) != shape(b) for a, b in zip(equation.invars, body.jaxpr.invars, strict=True))
        num_columns = sum(shape(a) != shape(b) for a, b in zip(equation.outvars, body.jaxpr.outvars, strict=True))
        num_carry = len(equation.outvars) - num_columns
        num_consts = len(inputs) - num_rows - num_carry
        consts, carry, rows = inputs[:num_consts], inputs[num_consts:][:num_carry], inputs[num_consts + num_carry :]
        collected: list[list[Lazy]] = []
        order = range(params["length"])
        for index in reversed(order) if params["reverse"] else order:
            row = [Lazy(lambda value=value, index=index: value.force()[index]) for value in rows]
            evaluator = _Evaluator(self.package, None) if collected else self  # nested loops count in the first trip
            results = evaluator.closed(body, consts + carry + row)
            carry = results[:num_carry]
            collected.append(results[num_carry:])
        if params["reverse"]:
            collected.reverse()
        stack = lambda place: jnp.stack([step[place].force() for step in collected])  # noqa: E731
        return carry + [Lazy(lambda place=place: stack(place)) for place in range(num_columns)]

    def branches(self, branches: Sequence[ClosedJaxpr], inputs: list[Lazy]) -> list[Lazy]:
        index, operands = inputs[0], inputs[1:]
        results = [self.closed(branch, operands) for branch in branches]  # loops of all branches count
        choose = lambda place: results[int(index.force())][place].force()  # noqa: E731
        return [Lazy(lambda place=place: choose(place)) for place in range(len(results[0]))]


def _later(compute: Callable[[], list[Any]], number: int) -> list[Lazy]:
    """Results of one computation."""
    together = Lazy(compute)
    return [Lazy(lambda place=place: together.force()[place]) for place in range(number)]


def _place(equation: Any, package: str) -> Place:
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    return tuple((frame.file_name, frame.line_num) for frame in frames if frame.file_name.startswith(package))
