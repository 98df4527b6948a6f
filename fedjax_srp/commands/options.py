"""Options of the command line, read off the functions they go to: name, type, default and help have one source."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

_PLAIN = (bool, int, float, str, type(None))


class Option(NamedTuple):
    """One option: `--` and its name with dashes."""

    name: str
    type: Any
    default: Any  # `REQUIRED` where there is none
    help: str


REQUIRED = inspect.Parameter.empty


def options_of(
    function: Callable, leave_out: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> list[Option]:
    """An option for every argument of a function that can be written on a command line.

    An argument whose annotation does not resolve is none, like one without an annotation.

    Args:
        function: its signature gives names, types and defaults, its docstring the help.
        leave_out: arguments that are no options.
        defaults: for arguments that need one here.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    (hints, help_texts), options = _read(inner), []
    leave_out = (*leave_out, *(function.keywords if isinstance(function, functools.partial) else ()))
    for name, parameter in _parameters(function):
        if name in leave_out or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if (kind := _plain_type(hints.get(name))) is not None:
            default = (defaults or {}).get(name, parameter.default)
            options.append(Option(name, kind, default, help_texts.get(name, "")))
    return options


@functools.lru_cache(maxsize=256)
def _parameters(function: Callable) -> tuple[tuple[str, inspect.Parameter], ...]:
    return tuple(inspect.signature(function).parameters.items())


@functools.lru_cache(maxsize=256)
def _read(function: Callable) -> tuple[dict[str, Any], dict[str, str]]:
    """Types and help of the arguments of a function."""
    return _hints(function), argument_help(function)


def _hints(function: Callable) -> dict[str, Any]:
    """The annotations that resolve; others may name what is imported for type checkers alone."""
    with contextlib.suppress(Exception):  # whatever evaluating them raises
        return typing.get_type_hints(function)
    found: dict[str, Any] = {}
    for name, hint in inspect.get_annotations(function).items():
        with contextlib.suppress(Exception):
            alone = types.SimpleNamespace(__annotations__={name: hint})
            found |= typing.get_type_hints(alone, getattr(inspect.unwrap(function), "__globals__", None))
    return found


def argument_help(function: Callable) -> dict[str, str]:
    """Argument -> its text in the Google-style docstring of a function, in one line."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(function) or "", re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \S|\Z)", section[1] if section else "", re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _plain_type(hint: Any) -> Any:
    """The part of a type that can be written on a command line, None where there is none."""
    origin = typing.get_origin(hint)
    if hint in _PLAIN or origin is Literal:
        return hint
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        item = next(iter(typing.get_args(hint)), None)  # none of a bare typing.Sequence
        return tuple[item, ...] if item in _PLAIN else None
    if origin in (Union, types.UnionType):
        parts = [part for part in map(_plain_type, typing.get_args(hint)) if part is not None]
        if tuple[str, ...] in parts:
            parts.remove(str) if str in parts else None
        return Union[tuple(parts)] if set(parts) - {type(None)} else None  # noqa: UP007
    return None
