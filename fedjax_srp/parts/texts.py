"""Parts as texts: `read_part("Fixed(Exponential(1.0))", ...)` builds what the constructors would build in Python.

A text is read with `ast` by a list of names and is never evaluated. It may hold numbers, quoted texts, flags, None,
tuples, arithmetic, constructors, words, and N for the number of clients.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_srp.parts.checks import ArgumentError, nearest, unknown_keyword

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_MAX_DEPTH = 50  # of constructors and operators within each other


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reader of the texts of one argument."""

    argument: str  # for errors
    text: str  # the same, as the user gave it
    makers: Mapping[str, Callable[..., Any]]  # name -> class or function
    words: Mapping[str, str]  # name without brackets -> the text that it stands for
    num_clients: int | None  # N; None where it is not known
    remedy: str

    def refuse(self, reason: str) -> ArgumentError:
        """Return the error for a text that is not understood."""
        problem = f"is not understood: {reason[:80]}"
        return ArgumentError(self.argument, self.text, problem, self.remedy)

    def parse(self, text: str) -> ast.expr:
        """Parse a text that is one expression."""
        try:
            return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # a ValueError for null bytes, the last two for thousands of brackets
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise self.refuse(reason or "it is nested too deeply") from None

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return the value of an expression."""
        if depth > _MAX_DEPTH:
            raise self.refuse("it is nested too deeply")
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Tuple(elts=entries) | ast.List(elts=entries):
                return tuple(self.value(entry, depth + 1) for entry in entries)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._operate(operator.sub, 0, self.value(operand, depth + 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                first = self.value(left, depth + 1)
                second = self.value(right, depth + 1)
                return self._operate(_OPERATORS[type(op)], first, second)
            case ast.Name(id="N"):
                if self.num_clients is None:
                    raise self.refuse(
                        "N, the number of clients, is not known here; write all as one text"
                    )
                return self.num_clients
            case ast.Name(id=name) if name in self.words:
                return self.value(self.parse(self.words[name]), depth + 1)
            case ast.Name(id=name):
                return self._call(name, [], [], depth)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
                return self._call(name, arguments, keywords, depth)
        raise self.refuse(f"{type(node).__name__.lower()} is no number, text or part")

    def _operate(
        self, operate: Callable[[Any, Any], Any], first: Any, second: Any
    ) -> Any:
        for operand in (first, second):
            if isinstance(operand, bool) or not isinstance(operand, int | float):
                raise self.refuse(f"{operand!r} is no number")
        try:
            return operate(first, second)
        except ArithmeticError as error:  # division by zero, overflow
            raise self.refuse(str(error)) from None

    def _call(
        self,
        name: str,
        positional: list[ast.expr],
        named: list[ast.keyword],
        depth: int,
    ) -> Any:
        if name not in self.makers:
            if name in self.words:
                raise self.refuse(f"{name} takes no arguments")
            known = [*self.makers, *self.words]  # most in lower case and as in Python
            is_title = name[:1].isupper()
            hint = nearest(
                name, [each for each in known if each[0].isupper() == is_title]
            )
            raise self.refuse(f"{name!r} is unknown{hint}")
        arguments = [self.value(argument, depth + 1) for argument in positional]
        options: dict[str, Any] = {}
        for keyword in named:
            if keyword.arg is None or keyword.arg in options:
                raise self.refuse(f"{keyword.arg or '**'} is given twice or has no name")
            options[keyword.arg] = self.value(keyword.value, depth + 1)
        maker = self.makers[name]
        signature = inspect.signature(maker)
        problem = unknown_keyword(signature, options)
        if problem:
            raise self.refuse(f"{name}: {problem}")
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise self.refuse(f"{name}: {error}") from None
        return maker(*arguments, **options)  # errors of a user's function are its own


def read_part(
    argument: str,
    text: str,
    makers: Mapping[str, Callable[..., Any]],
    remedy: str,
    words: Mapping[str, str] | None = None,
    num_clients: int | None = None,
) -> Any:
    """Return the part that a text constructs.

    Args:
        argument: its name, for errors.
        text: such as "Fastest(k=5)".
        makers: name -> class or function that may be called.
        remedy: for errors.
        words: name -> the text that it stands for.
        num_clients: N in the text; None where it is not known.

    Raises:
        ValueError: one line with argument, text, what is not understood, and the remedy.

    Example:
        >>> import fedjax_srp as srp
        >>> makers = {"Fixed": srp.clocks.Fixed, "Constant": srp.clocks.Constant}
        >>> clock = read_part("clock", "Fixed(Constant(2 * N))", makers, "", num_clients=3)
        >>> clock == srp.clocks.Fixed(srp.clocks.Constant(6.0))
        True
    """
    reader = Reader(argument, text, makers, words or {}, num_clients, remedy)
    return reader.value(reader.parse(text))
