"""Parser of clocks: `fixed`, `dynamic:exponential(uniform(1/N, 1))`, `trace:times.csv`, `failing(fixed(...), 0.1)`."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedjax_srp import clocks
from fedjax_srp.base import Clock
from fedjax_srp.parts.checks import check_known, short

_RANDOM = "dynamic:exponential(uniform(1/N, 1))"
ALIASES = {
    "fixed": "fixed:exponential(1)",
    "random": _RANDOM,
    "dynamic": _RANDOM,
}  # SRPFL, section 5
CLOCKS = {cls.name: cls for cls in (clocks.Fixed, clocks.Dynamic)}
DISTRIBUTIONS = {
    cls.name: cls
    for cls in (clocks.Exponential, clocks.Uniform, clocks.Constant, clocks.LogNormal)
}
PARAMETRIZED = {
    cls.name: cls for cls in (clocks.Available, clocks.Failing, clocks.Devices)
}
_MAKERS = (
    CLOCKS
    | PARAMETRIZED
    | {cls.name: cls for cls in (clocks.Markov, clocks.DayNight)}
    | DISTRIBUTIONS
)
HELP = (
    "time of each client for a unit of local work: fixed (T_i ~ Exp(1), drawn once), random or dynamic "
    "(T_i ~ Exp(lambda_i) in every round, lambda_i ~ U[1/N, 1] once), fixed:DISTRIBUTION or dynamic:DISTRIBUTION with "
    "exponential(rate), uniform(low, high), lognormal(median, sigma) or constant(value), where a distribution may "
    "replace a number, N is the number of clients, and a final + COST adds a communication cost to every time (for "
    "rounds that overlap), or trace:FILE, a .csv or .npy with a row per round and a column per client, "
    "whose names may be the first line; ordered: before "
    "any but a trace (ordered:fixed) numbers clients by speed, the fastest first; devices(compute, downlink, uplink) "
    "with a number or a distribution for each, available(CLOCK, markov(on, off)), available(CLOCK, daynight(period)) "
    "and failing(CLOCK, rate), where CLOCK is devices(...), fixed(DISTRIBUTION) or dynamic(DISTRIBUTION); or NAME or "
    "NAME(...) of srp.clocks.register"
)
_REMEDY = "give fixed, random, fixed:exponential(1), dynamic:exponential(uniform(1/N, 1)) or trace:FILE"
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_PARSE_ERRORS = (
    SyntaxError,
    KeyError,
    ArithmeticError,
    TypeError,
    RecursionError,
    MemoryError,
)


def parse(
    text: str, num_clients: int, client_names: Sequence[str] | None = None
) -> Clock:
    """Return the clock of a text, see `HELP`; `client_names` are matched with a trace's header."""
    called = PARAMETRIZED | clocks.OWN
    if (name := text.partition("(")[0].strip()) in called:
        remedy = (
            f"give {name}(...), see --help"
            if name in PARAMETRIZED
            else f"give {name} or {name}(...)"
        )
        with _one_line_errors(text, remedy):
            make = _bind(ast.parse(text, mode="eval").body, called, num_clients)
        return (
            make()
        )  # outside, so that errors of a user's own function keep their traceback
    words = text.removeprefix("ordered:")
    kind, _, rest = ALIASES.get(words, words).partition(":")
    if kind == "trace":
        if words != text:
            raise ValueError(
                f"clock={text!r}: a trace says who is slow; sort its columns, or leave out ordered:"
            )
        try:
            return clocks.Trace(clocks.read_times(rest, client_names))
        except ValueError as error:
            raise ValueError(
                str(error).replace(f"path={rest!r}", f"clock='trace:{rest}'", 1)
            ) from None
    if kind in ALIASES and kind not in CLOCKS:
        raise ValueError(
            f"clock={text!r}: {kind!r} means {ALIASES[kind]} and takes no distribution; {_REMEDY}"
        )
    own = "; srp.clocks.register, in a file for --load, adds one of your own"
    check_known("clock", [kind], [*ALIASES, "trace", *called], own)
    communication = 0.0
    with _one_line_errors(text, _REMEDY):
        node = ast.parse(rest, mode="eval").body
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            node, communication = node.left, _evaluate(node.right, num_clients)
        distribution = _evaluate(node, num_clients)
    return CLOCKS[kind](distribution, ordered=words != text, communication=communication)


@contextlib.contextmanager
def _one_line_errors(text: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except _PARSE_ERRORS as error:
        raise ValueError(
            f"clock={short(text)}: not understood ({_reason(error)}); {remedy}"
        ) from None


def _evaluate(node: ast.expr, num_clients: int) -> Any:
    """Evaluate numbers, texts, arithmetic, N, distributions and clocks; refuse everything else."""
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id="N"):
            return num_clients
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, num_clients)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](
                _evaluate(left, num_clients), _evaluate(right, num_clients)
            )
    return _bind(node, _MAKERS, num_clients)()


def _bind(
    node: ast.expr, makers: Mapping[str, Callable[..., Any]], num_clients: int
) -> Callable[[], Any]:
    """Return a maker bound to the arguments of a call."""
    match node:
        case ast.Name(id=name) if name in makers:
            positional, named = [], []
        case ast.Call(func=ast.Name(id=name), args=positional, keywords=named) if (
            name in makers
        ):
            pass
        case _:
            raise KeyError(ast.unparse(node))
    options: dict[str, Any] = {}
    for keyword in named:
        if keyword.arg is None:
            raise KeyError(ast.unparse(keyword))
        if keyword.arg in options:
            raise SyntaxError(f"{keyword.arg} is given twice")
        options[keyword.arg] = _evaluate(keyword.value, num_clients)
    arguments = [_evaluate(argument, num_clients) for argument in positional]
    inspect.signature(makers[name]).bind(*arguments, **options)
    return functools.partial(makers[name], *arguments, **options)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{short(error.args[0])} is unknown"
    return str(error).partition(";")[0][:100] or type(error).__name__
