"""Options of a part: its fields and those of its inner parts, by short names.

The command line, `srp.methods.get`, grids and the manual read them from the dataclass and its docstring. A nested field
has a short name, `learning_rate` for `training.optimizer.learning_rate`, unless two fields share it; fields of a part
that is None by default, such as `fine_tune_optimizer.momentum`, have their full name.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

from fedjax_srp.parts import part as parts
from fedjax_srp.parts.checks import (
    ArgumentError,
    as_annotated,
    check_known,
    checked,
    hints_of,
    nearest,
    short,
)

REQUIRED = inspect.Parameter.empty
_PLAIN = (bool, int, float, str, type(None))


class Option(NamedTuple):
    """Option of a part, of a function or of a command."""

    path: str  # dotted, from the outermost part
    hint: Any  # its annotation
    default: Any  # `REQUIRED` if there is none
    help: str
    is_part: bool = False  # an object, for Python only
    is_optional: bool = False  # in a part that is None by default

    @property
    def field(self) -> str:
        """Last component of its path."""
        return self.path.rpartition(".")[2]

    @property
    def type(self) -> Any:
        """Its types that a command line can express, without bounds; None if there are none."""
        return None if self.is_part else _plain_type(self.hint)


def _plain_type(hint: Any) -> Any:
    kinds = [
        kind
        for kind in map(_plain, (kind for kind, _ in parts.types_of(hint)))
        if kind is not None
    ]
    if tuple[str, ...] in kinds:
        kinds = [kind for kind in kinds if kind is not str]
    if float in kinds:  # such as the items of an array
        kinds = [kind for kind in kinds if kind not in (int, bool)]
    return Union[tuple(kinds)] if set(kinds) - {type(None)} else None  # noqa: UP007


def _plain(kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind in _PLAIN or origin is Literal:
        return kind
    if origin in (list, tuple) or (
        isinstance(origin, type) and issubclass(origin, Sequence)
    ):
        item = _plain_type(
            next(iter(typing.get_args(kind)), None)
        )  # a bare typing.Sequence has none
        return tuple[item, ...] if item in _PLAIN else None
    return None


def written(
    maker: Callable[..., Any], leave_out: Collection[str] = (), **defaults: Any
) -> dict[str, Option]:
    """Return short name -> option of a maker that a command line can express, with other defaults for some.

    Arguments without a resolvable annotation are left out, and so are parts, whose fields are options instead.
    """
    found = {
        name: option
        for name, option in options_of(maker).items()
        if name not in leave_out and option.type
    }
    return {
        name: option._replace(default=defaults.get(name, option.default))
        for name, option in found.items()
    }


def without_partial(maker: Callable[..., Any]) -> Callable[..., Any]:
    """Return the class or function of a `functools.partial`, and any other maker as it is."""
    return maker.func if isinstance(maker, functools.partial) else maker


@functools.lru_cache(maxsize=512)
def options_of(maker: Callable[..., Any]) -> dict[str, Option]:
    """Return short name -> option of a class of parts or of a function that makes a part."""
    fixed = maker.keywords if isinstance(maker, functools.partial) else {}
    inner = without_partial(maker)
    found = _of_class(inner) if parts.is_part(inner) else _of_function(inner)
    found = [option for option in found if option.path.partition(".")[0] not in fixed]
    number = collections.Counter(
        option.field for option in found if not option.is_optional
    )
    return {o.path if o.is_optional or number[o.field] > 1 else o.field: o for o in found}


def _of_class(cls: Any, default: Any = None, is_optional: bool = False) -> list[Option]:
    """Return the options of a class of parts, with the values of an instance instead of defaults if one is given."""
    found, texts = [], argument_help(cls)
    for field in dataclasses.fields(cls):
        hint = parts.fields(cls).hints[field.name]
        value = getattr(default, field.name) if default is not None else field.default
        value = REQUIRED if value is dataclasses.MISSING else value
        within, optional = _within(hint, value)
        text = texts.get(field.name, "")
        found.append(
            Option(field.name, hint, value, text, within is not None, is_optional)
        )
        if within is not None:
            of_field = _of_class(
                within, None if optional else value, is_optional or optional
            )
            found += [
                option._replace(
                    path=f"{field.name}.{option.path}",
                    default=None if optional else option.default,
                )
                for option in of_field
            ]
    return found


def _within(hint: Any, value: Any) -> tuple[Any, bool]:
    """Return the class of an inner part whose fields are options too, and True if it is None by default."""
    if parts.is_part(value):
        return type(value), False
    if value is None:
        kinds = (kind for kind, _ in parts.types_of(hint) if parts.is_part(kind))
        return next((getattr(kind, "default_class", None) for kind in kinds), None), True
    return None, False


def _of_function(function: Callable[..., Any]) -> list[Option]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    texts, hints = argument_help(function), hints_of(function)
    return [
        Option(name, hints.get(name, Any), parameter.default, texts.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named
    ]


@functools.lru_cache(maxsize=512)
def argument_help(documented: Any) -> dict[str, str]:
    """Return argument -> its text in the Google-style docstring of a function or class (and its bases), in one line."""
    if parts.is_part(documented):
        bases = [
            base
            for base in reversed(documented.__mro__)
            if parts.is_part(base) and base.__doc__
        ]
        return {
            name: text for base in bases for name, text in _arguments_of(base).items()
        }
    return _arguments_of(documented)


def _arguments_of(documented: Any) -> dict[str, str]:
    section = re.search(
        r"^Args:\n(.*?)(?=^\S|\Z)",
        inspect.getdoc(documented) or "",
        re.DOTALL | re.MULTILINE,
    )
    entries = re.findall(
        r"^    (\w+): (.*?)(?=^    \S|\Z)",
        section[1] if section else "",
        re.DOTALL | re.MULTILINE,
    )
    return {name: " ".join(text.split()) for name, text in entries}


def build(
    maker: Callable[..., Any], given: Mapping[str, Any], *args: Any, **fixed: Any
) -> Any:
    """Build a part with options by name; the others have their defaults."""
    known = options_of(maker)
    paths = {
        known[name].path if name in known else name: value
        for name, value in given.items()
    }
    for path in paths:
        whole = next(
            (p for p in paths if path.startswith(f"{p}.") and parts.is_part(paths[p])),
            None,
        )
        if whole is not None:
            raise ValueError(
                f"{path.rpartition('.')[2]}: the {whole} that is given has its own; leave one of the two out"
            )
    inner: Any = without_partial(maker)
    if not parts.is_part(inner):
        return maker(*args, **fixed, **paths)
    names = [field.name for field in dataclasses.fields(inner)]
    check_known(
        "option",
        [path for path in paths if path.partition(".")[0] not in names],
        known,
        of=inner.name,
    )
    return maker(*args, **fixed, **_arguments(inner, paths, None))


def _arguments(cls: Any, paths: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """Return the arguments of a class, with inner parts built from their options."""
    arguments: dict[str, Any] = {
        name: value for name, value in paths.items() if "." not in name
    }
    of_parts: dict[str, dict[str, Any]] = {}
    for path, value in paths.items():
        first, dot, rest = path.partition(".")
        if dot:
            of_parts.setdefault(first, {})[rest] = value
    for field in dataclasses.fields(cls):
        if field.name not in of_parts:
            continue
        start = arguments.get(
            field.name,
            getattr(default, field.name) if default is not None else field.default,
        )
        is_optional = start is None
        if is_optional:
            start = _default_part(cls, field.name, arguments)
        if not parts.is_part(start):
            raise ValueError(
                f"{field.name}={short(start)} has no options; give it as a whole"
            )
        changes = _arguments(type(start), of_parts[field.name], start)
        try:
            arguments[field.name] = dataclasses.replace(start, **changes)
        except ArgumentError as error:
            if not is_optional:
                raise
            # of several optimizers, name this one
            raise error.renamed(f"{field.name}.{error.argument}") from None
    return arguments


def _default_part(cls: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the part that options change if the field is None: for a second optimizer, that of training."""
    default_class, _ = _within(parts.fields(cls).hints[name], None)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    if default_class is not None and "training" in defaults:
        return arguments.get("training", defaults["training"]).optimizer
    return None if default_class is None else default_class()


def full_names(given: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert short names of values to dotted names of the leaves of a part."""
    known, short_names = parts.values_of(given), options_of(type(given))

    def full(name: str) -> str:
        path = short_names[name].path if name in short_names else name
        found = (
            [path]
            if path in known
            else [dotted for dotted in known if dotted.endswith(f".{name}")]
        )
        if len(found) > 1:
            raise ValueError(
                f"values: {name!r} stands for {' and '.join(found)}; give one of them in full"
            )
        if not found:
            has = (
                ", ".join(
                    name for name, option in short_names.items() if option.path in known
                )
                or "none"
            )
            raise ValueError(
                f"values has {name!r}, which is no float of {given.name!r} as it is{nearest(name, short_names)}; "
                f"it has {has}"
            )
        return found[0]

    by_path: dict[str, Any] = {}
    for name, value in values.items():
        if (path := full(name)) in by_path:
            raise ValueError(
                f"values: {name!r} is {path}, which is given twice; leave one of the two out"
            )
        by_path[path] = value
    return by_path


def checked_maker(
    kind: str, maker: Callable[..., Any], makes: type, given: int = 0
) -> Callable[..., Any]:
    """Check a user's class or function that makes a part from `given` arguments and options with defaults."""
    as_annotated(kind, maker, Callable[..., Any])
    called = getattr(maker, "__name__", type(maker).__name__)
    if given:
        try:
            inspect.signature(maker).bind(*[None] * given)
        except TypeError as error:
            expected = f"it gets {given} arguments, its options must have defaults"
            raise ValueError(f"{kind}={called}: {error}; {expected}") from None
    if isinstance(without_partial(maker), type):
        return maker

    checking = checked(maker)

    @functools.wraps(maker)
    def make(*args: Any, **options: Any) -> Any:
        part = checking(*args, **options)
        if not isinstance(part, makes):
            raise ValueError(f"{called}: returned {short(part)}, not a {makes.__name__}")
        return part

    return make
