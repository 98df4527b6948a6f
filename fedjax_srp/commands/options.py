"""Options of the command line, read off the functions and parts they go to: name, type, default and help, once."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

from fedjax_srp import options, parts
from fedjax_srp.options import REQUIRED

__all__ = ["REQUIRED", "Option", "options_of", "plain_type"]

_PLAIN = (bool, int, float, str, type(None))


class Option(NamedTuple):
    """One option: `--` and its name with dashes."""

    name: str
    type: Any
    default: Any  # `REQUIRED` where there is none
    help: str


def options_of(
    maker: Callable, leave_out: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> list[Option]:
    """An option for everything that a function or a class of parts takes and that can be written on a command line.

    What has no annotation, or one that does not resolve, is none, and neither is a part, whose fields are options.

    Args:
        maker: as for `fedjax_srp.options.options_of`.
        leave_out: names that are no options.
        defaults: for those that need one here.
    """
    found = [option for option in _read(maker) if option.name not in leave_out]
    return [option._replace(default=(defaults or {}).get(option.name, option.default)) for option in found]


@functools.lru_cache(maxsize=512)
def _read(maker: Callable) -> tuple[Option, ...]:
    found = []
    for name, option in options.options_of(maker).items():
        kind = None if option.is_part else plain_type(option.hint)
        if kind is not None:
            found.append(Option(name, kind, option.default, option.help))
    return tuple(found)


def plain_type(hint: Any) -> Any:
    """The part of a type that can be written on a command line, without bounds; None where there is none."""
    kinds = [kind for kind in map(_plain, (kind for kind, _ in parts.members(hint))) if kind is not None]
    if tuple[str, ...] in kinds:
        kinds = [kind for kind in kinds if kind is not str]
    if float in kinds:  # of an array, which may be of whole numbers and flags too
        kinds = [kind for kind in kinds if kind not in (int, bool)]
    return Union[tuple(kinds)] if set(kinds) - {type(None)} else None  # noqa: UP007


def _plain(kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind in _PLAIN or origin is Literal:
        return kind
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        item = plain_type(next(iter(typing.get_args(kind)), None))  # none of a bare typing.Sequence
        return tuple[item, ...] if item in _PLAIN else None
    return None
