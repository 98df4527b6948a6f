"""Clocks by name and as texts: words, constructors, files of times, and clocks that users register."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedjax_srp.base import Clock
from fedjax_srp.clocks.availability import Availability, DayNight, Intervals, Markov
from fedjax_srp.clocks.available import Available, Failing
from fedjax_srp.clocks.devices import Devices
from fedjax_srp.clocks.distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
)
from fedjax_srp.clocks.dynamic import Dynamic
from fedjax_srp.clocks.fixed import Fixed
from fedjax_srp.clocks.redrawn import Redrawn
from fedjax_srp.clocks.trace import Trace
from fedjax_srp.clocks.traces import read_times
from fedjax_srp.parts.checks import ArgumentError, as_annotated, reads_texts
from fedjax_srp.parts.options import checked_maker
from fedjax_srp.parts.registry import Registry
from fedjax_srp.parts.texts import Reader, read_part

_RANDOM = "Dynamic(Exponential(Uniform(1 / N, 1)))"
WORDS = {  # SRPFL, section 5
    "fixed": "Fixed(Exponential(1.0))",
    "random": _RANDOM,
    "dynamic": _RANDOM,
}
DISTRIBUTIONS = (Exponential, Uniform, LogNormal, Constant, Empirical)
AVAILABILITIES = (Markov, DayNight, Intervals)
CLASSES = (Fixed, Dynamic, Trace, Devices, Available, Failing, Redrawn)
_ALL = (*CLASSES, *AVAILABILITIES, *DISTRIBUTIONS)
_CONSTRUCTORS: dict[str, Callable[..., Any]] = {cls.__name__: cls for cls in _ALL}
CLOCKS: Registry[Callable[..., Any]] = Registry(
    "clock",
    {cls.name: cls for cls in _ALL},
    adds="srp.clocks.register",
    reserved=(*WORDS, *_CONSTRUCTORS, "ordered", "N"),
)
_REMEDY = (
    "give e.g. random, Fixed(Exponential(1.0)), fixed:exponential(1) or trace:FILE; "
)


def register(name: str, maker: Callable[..., Clock]) -> None:
    """Register your own clock, to be given as a text: `clock="name"` or `clock="name(2.0, N)"`.

    Args:
        name: of the clock, a Python identifier.
        maker: a class of clocks, or a function that returns a clock. The text in brackets has its
            arguments: numbers, distributions, quoted texts, N for the number of clients, positional
            or by name.

    Example:
        >>> import fedjax_srp as srp
        >>> def two_speeds(slow: float = 5.0):
        ...     return srp.clocks.Fixed(srp.clocks.Uniform(1.0, slow))
        >>> srp.clocks.register("two_speeds", two_speeds)  # fedjax-srp run --clock "two_speeds(9)"
        >>> del srp.clocks.CLOCKS["two_speeds"]
    """
    clock_maker = checked_maker("clock", maker, Clock)
    as_annotated("name", name, str)
    if not name.isidentifier():
        raise ArgumentError("name", name, "is no word", "give a name such as rush_hour")
    CLOCKS.add(name, clock_maker)


def read_clock(
    text: str, num_clients: int | None = None, client_names: Sequence[str] | None = None
) -> Clock:
    """Return the clock of a text.

    Args:
        text: a word, a constructor, or one of the short forms `trace:FILE`, `ordered:CLOCK`,
            `fixed:DISTRIBUTION`, `dynamic:DISTRIBUTION` and `CLOCK + COST`.
        num_clients: N in the text.
        client_names: of the data, matched with the header of a trace's file.

    Raises:
        ValueError: one line with the text, what is not understood, and the remedy.

    Example:
        >>> read_clock("ordered:fixed:uniform(1, 5)").ordered
        True
    """
    makers = _CONSTRUCTORS | CLOCKS
    remedy = _REMEDY + CLOCKS.remedy
    reader = Reader("clock", text, makers, WORDS, num_clients, remedy)
    rest = text.removeprefix("ordered:").strip()
    kind, colon, inside = rest.partition(":")
    is_ordered = text.startswith("ordered:")
    if kind == "trace" and colon:
        if is_ordered:
            raise reader.refuse("a trace says who is slow; sort its columns")
        return _read_trace(inside, client_names)
    is_short = bool(colon) and kind.isidentifier()
    node = reader.parse(inside if is_short else rest)
    options: dict[str, ast.expr] = {}
    if is_ordered:
        options["ordered"] = ast.Constant(True)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        options["communication"] = node.right
        node = node.left
    if is_short:
        node = ast.Call(ast.Name(kind), [node], [])
    if options:
        node = _with_options(reader, node, options)
    return as_annotated("clock", reader.value(node), Clock)


def _with_options(
    reader: Reader, node: ast.expr, options: dict[str, ast.expr]
) -> ast.Call:
    """Return the expression of a clock with further arguments."""
    if isinstance(node, ast.Name):
        word = reader.words.get(node.id)
        node = ast.Call(node, [], []) if word is None else reader.parse(word)
    if not isinstance(node, ast.Call):
        raise reader.refuse(f"{' and '.join(options)} without a clock")
    keywords = [ast.keyword(name, value) for name, value in options.items()]
    return ast.Call(node.func, node.args, [*node.keywords, *keywords])


def _read_trace(file: str, client_names: Sequence[str] | None) -> Trace:
    try:
        return Trace(read_times(file, client_names))
    except ArgumentError as error:
        if error.argument != "path":
            raise
        value = Path(f"trace:{file}")  # shown in full
        raise ArgumentError("clock", value, error.problem, error.remedy) from None


def _read_nested(text: str) -> Any:
    """Return the part of a text within a clock, such as a distribution."""
    makers = _CONSTRUCTORS | CLOCKS
    return read_part("clock", text, makers, _REMEDY + CLOCKS.remedy, WORDS)


reads_texts(Clock, "clock", read_clock)
reads_texts(Distribution, "clock", _read_nested)
reads_texts(Availability, "clock", _read_nested)
