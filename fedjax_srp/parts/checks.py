"""Input checks: each raises a ValueError of one line with the argument, its value and the remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import functools
import inspect
import numbers
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Annotated, Any, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_srp.parts.bounds import Above, AtLeast, Axes, Bound

INT32_MAX = 2**31 - 1  # integers in programs are int32

P = ParamSpec("P")
R = TypeVar("R")

ALL_BUT_EQUAL = 0.85  # similarity by difflib, as of `fedpro` and `fedproto`
ABBREVIATIONS = {
    "seed": "key"
}  # what users write -> an argument that nothing else suggests


# class of parts -> the argument that errors of its reader of texts name, and the reader
_READERS: dict[type, tuple[str, Callable[[str], Any]]] = {}


class ArgumentError(ValueError):
    """Argument that is refused. Its text is one line: argument, value, problem and remedy.

    Attributes:
        argument: its name, such as "num_rounds" or "axes[2]".
        value: what was given.
        problem: such as "must be at least 1".
        remedy: what to do instead, or "".
    """

    def __init__(self, argument: str, value: Any, problem: str, remedy: str = ""):
        super().__init__(argument, value, problem, remedy)
        self.argument = argument
        self.value = value
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return self._line(self.problem)

    def _line(self, problem: str) -> str:
        if isinstance(self.value, os.PathLike):
            value = repr(os.fspath(self.value))
        elif isinstance(self.value, str):
            value = short(self.value, most=130)
        else:
            value = short(self.value)
        line = f"{self.argument}={value} {problem}"
        if self.remedy:
            line = f"{line}; {self.remedy}"
        return printable(line)

    def renamed(self, argument: str) -> Self:
        """Return the same error about an argument that callers know under another name."""
        return type(self)(argument, self.value, self.problem, self.remedy)


class WrongTypeError(ArgumentError):
    """Argument of another type; `problem` is what was expected, such as "an integer"."""

    def __str__(self) -> str:
        return self._line(f"must be {self.problem}")


def short(value: Any, most: int = 60) -> str:
    """Return `repr` in one line of at most so many characters; for a function or a class, its name."""
    try:
        if inspect.isroutine(value) or inspect.isclass(value):
            text = f"{value.__module__}.{value.__qualname__}"
        elif isinstance(value, np.number | np.bool_):
            text = str(value)
        else:
            text = " ".join(repr(value).split())
    except ValueError:  # an integer with more digits than Python prints
        text = f"{type(value).__name__} of very many digits"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(
    text: str, kept: str = "", instead: str = "\N{REPLACEMENT CHARACTER}"
) -> str:
    """Replace control characters, which terminals obey and tables and file names carry on, except for those in `kept`.

    Names in files of others may have them. Characters that hide or reorder text are replaced too.
    """
    return "".join(
        letter if letter.isprintable() or letter in kept else instead for letter in text
    )


def printable_within(value: Any) -> Any:
    """Replace the control characters in all texts of a JSON value, also in the names of its members."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(name): printable_within(each) for name, each in value.items()}
    if isinstance(value, list):
        return [printable_within(each) for each in value]
    return value


def check_known(
    kind: str, names: Iterable[object], known: Iterable[str], more: str = "", of: str = ""
) -> None:
    """Raise a ValueError of one line for the first unknown name, with the nearest known names and all of them."""
    known, owner = list(known), f" of {of}" if of else ""
    for name in names:
        if not isinstance(name, str) or name not in known:
            hint = nearest(name, known)
            choices = printable(", ".join(known)) or "none"
            raise ValueError(
                f"unknown {kind} {short(name)}{owner}{hint}; choose from {choices}{more}"
            )


def unknown_keyword(signature: inspect.Signature, given: Iterable[str]) -> str:
    """Say which keyword a call does not take, with the nearest names and all of them; "" if it takes all."""
    kinds = {name: each.kind for name, each in signature.parameters.items()}
    known = [name for name in kinds if name != "self"]
    for name in given:
        if name not in known and inspect.Parameter.VAR_KEYWORD not in kinds.values():
            has = ", ".join(known) or "none"
            return f"got an unexpected keyword argument {name!r}{nearest(name, known)}; it has {has}"
    return ""


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint in brackets with similar known names, or "".

    Names that are all but equal, and those that begin with the name, are given without others.
    """
    word = str(name)
    others = sorted({*known} - {word})  # a name is no hint for itself
    close = difflib.get_close_matches(word, others, n=3, cutoff=cutoff)
    nearly = difflib.get_close_matches(word, close, n=3, cutoff=ALL_BUT_EQUAL)
    if nearly:
        close = [each for each in close if each in nearly or each.startswith(word)]
    if not close:
        close = [other for other in others if _abbreviates(word, other)][:3]
    return f" (did you mean {printable(' or '.join(close))}?)" if close else ""


def _abbreviates(word: str, name: str) -> bool:
    """Return True for `lr` or `rate` of `learning_rate`, with or without the dashes of a flag."""
    letters = word.lstrip("-").replace("-", "_")
    words = name.lstrip("-").replace("-", "_")
    initials = "".join(each[:1] for each in words.split("_"))
    if ABBREVIATIONS.get(letters) == words:
        return True
    is_short_form = len(letters) > 1 and letters == initials
    return is_short_form or (len(letters) > 2 and letters in words)


def check_path(argument: str, path: str | os.PathLike) -> None:
    """Raise an ArgumentError for a path that no file can have, or that may not be looked up."""
    try:
        os.stat(path)
    except (OSError, ValueError) as error:  # a path with NUL is a ValueError
        number = getattr(error, "errno", None)
        if number in (None, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES):
            reason = getattr(error, "strerror", None) or error
            raise ArgumentError(
                argument, os.fspath(path), f"is no path ({reason})", "give another one"
            ) from None


def check_choice(argument: str, value: Any, choices: Iterable[Any]) -> Any:
    """Return `value`, or raise a ValueError of one line, with the nearest choices, unless it is one of them."""
    choices = list(choices)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        names = list(map(str, choices))
        problem = f"is unknown{nearest(value, names)}"
        raise ArgumentError(argument, value, problem, f"choose from {', '.join(names)}")
    return value


def check_integer(
    argument: str,
    value: Any,
    minimum: int | None,
    maximum: int | None = INT32_MAX,
    otherwise: str = "",
) -> int:
    """Return `value` as an int, or raise a ValueError of one line unless it is an integer in minimum..maximum.

    None means no bound. `otherwise` names what else the caller accepts.
    """
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        or_else = f", or {otherwise}" if otherwise else ""
        traced = ", known before tracing" if isinstance(value, Tracer) else ""
        least = "" if minimum is None else f", at least {minimum}"
        raise WrongTypeError(argument, value, f"an integer{traced}{least}{or_else}")
    if minimum is not None and number < minimum:
        raise ArgumentError(argument, number, f"must be at least {minimum}")
    if maximum is not None and number > maximum:
        raise ArgumentError(argument, number, f"must be at most {maximum}")
    return number


def is_key(value: Any) -> bool:
    """Return True for a typed key or an array of them."""
    return isinstance(value, jax.Array) and jnp.issubdtype(
        value.dtype, jax.dtypes.prng_key
    )


def check_key(argument: str, value: Any) -> None:
    """Raise a ValueError of one line unless `value` is a typed key; arrays of keys pass unless it is called key."""
    if not is_key(value):
        is_seed = isinstance(value, int) and not isinstance(value, bool)
        remedy = f"jax.random.key({value if is_seed else 'seed'})"
        if argument == "keys":
            remedy = f"jax.random.split({remedy}, num_seeds)"
        raise ArgumentError(argument, value, "is not a typed key", f"use {remedy}")
    if argument == "key" and value.shape:
        raise ValueError(
            f"key has shape {value.shape}, give one key; simulate_seeds takes several"
        )


def is_number(value: Any) -> bool:
    """Return True for a real number of known value: a Python or NumPy number, or an array without axes."""
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, Tracer):
        return value.ndim == 0 and is_real(value.dtype)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:  # an integer too large for any float
        return False
    return True


def is_real(dtype: Any) -> bool:
    """Return True for integer and float types."""
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def check_numbers(argument: str, value: Any, remedy: str, *, max_ndim: int = 1) -> None:
    """Raise a ValueError of one line unless `value` holds finite numbers >= 0, also after conversion to JAX's floats.

    Tracers pass, since their values are unknown.
    """
    numbers = None if isinstance(value, Tracer) or is_key(value) else np.asarray(value)
    if not is_real(value.dtype if numbers is None else numbers.dtype):
        raise ValueError(
            f"{argument} must be of real numbers, got {short(value)}; {remedy}"
        )
    if np.ndim(value) > max_ndim:
        raise ValueError(
            f"{argument} must have at most {max_ndim} axes, got shape {np.shape(value)}; {remedy}"
        )
    if numbers is None:
        return
    with np.errstate(over="ignore", under="ignore"):
        in_program = numbers.astype(jnp.result_type(float))
    bad = ~np.isfinite(in_program) | (numbers < 0)
    if np.any(bad):
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" at index {index[0] if len(index) == 1 else index}" if index else ""
        lost = np.isfinite(numbers[index]) and numbers[index] >= 0
        as_float = f", which is {in_program[index]} as {in_program.dtype}" if lost else ""
        raise ValueError(
            f"{argument} must be finite and >= 0, got {numbers[index]}{as_float}{place}; {remedy}"
        )


def per_example(losses: Any, num_examples: int) -> Any:
    """Return the losses, or raise a ValueError of one line unless there is one number per example of a batch.

    Other shapes would broadcast against the weights of the examples and give a wrong gradient.
    """
    shape = getattr(losses, "shape", type(losses).__name__)
    if shape != (num_examples,):
        raise ValueError(
            f"loss returned {shape} for {num_examples} examples, it must return ({num_examples},): one number for "
            "each; leave out the mean over them, and take outputs[:, 0] where a model has one output"
        )
    return losses


PACKAGE = Path(__file__).parents[1]
BASE = "fedjax_srp.base"  # whose classes `driver.prepare` checks
# Marks in annotations of parts, see `parts`; other texts there are remedies.
STATIC = "static"
LEAF = "leaf"


class KeyMark:
    """Mark in the annotation of a typed key, see `base.Key`."""


def is_part(value: Any) -> bool:
    """Return True for a part or a class of parts."""
    cls = value if isinstance(value, type) else type(value)
    return hasattr(cls, "__is_part__")


def types_of(
    hint: Any, metadata: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the types that an annotation allows, each with its `Annotated` metadata."""
    if typing.get_origin(hint) is Annotated:
        inner, *more = typing.get_args(hint)
        yield from types_of(inner, (*metadata, *more))
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for kind in typing.get_args(hint):
            yield from types_of(kind, metadata)
    else:
        yield hint, metadata


def evaluate(hints: Mapping[str, Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate annotations that are strings, except those that fail, such as names for type checkers only."""
    evaluated = dict(hints)
    for name, hint in hints.items():
        if isinstance(hint, str):
            with contextlib.suppress(Exception):
                evaluated[name] = eval(hint, dict(scope))
    return evaluated


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, or of the fields of a dataclass, that can be evaluated."""
    inner = inspect.unwrap(function)
    if isinstance(inner, functools.partial):
        return hints_of(inner.func)
    annotations: dict[str, Any] = {}
    scope = getattr(inner, "__globals__", {})
    if inspect.isroutine(inner):
        annotations = inspect.get_annotations(inner)
    elif isinstance(inner, type) and dataclasses.is_dataclass(inner):
        annotations = inspect.get_annotations(inner)
        scope = vars(sys.modules[inner.__module__])
    hints = evaluate(annotations, scope)
    return {name: hint for name, hint in hints.items() if not isinstance(hint, str)}


def is_array_type(kind: Any) -> bool:
    """Return True for array types."""
    origin = typing.get_origin(kind) or kind
    return inspect.isclass(origin) and issubclass(origin, np.ndarray | jax.Array)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function check its arguments by its annotations; errors are one line.

    Types, bounds and choices are checked as for fields of parts (`as_annotated`), and so are paths, keys, mappings and
    classes; but entries of sequences are not checked, and floats may be infinite. NumPy's numbers are accepted.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    of_many = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = [parameter.name for parameter in parameters if parameter.kind not in of_many]
    # At the first call, when types defined below it exist.
    hints = functools.cache(lambda: hints_of(function))

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # If some are missing, the call below raises the error.
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            unknown = next((name for name in kwargs if name not in named), "")
            hint = nearest(unknown, named)
            raise TypeError(f"{function.__qualname__}(): {error}{hint}") from None
        for name, value in bound.arguments.items():
            if name in named:
                hint = hints().get(name, Any)
                bound.arguments[name] = as_annotated(name, value, hint, is_field=False)
        return function(*bound.args, **bound.kwargs)

    return make


def as_annotated(argument: str, value: Any, hint: Any, is_field: bool = True) -> Any:
    """Convert a value to its annotated type, or raise a ValueError of one line.

    NumPy's numbers become Python's; for a field of a part, also integers become floats, and lists tuples or arrays.
    """
    kinds = list(types_of(hint))
    types_alone = [kind for kind, _ in kinds]
    if value is None and (None in types_alone or type(None) in types_alone):
        return None
    value = _as_python(value)
    if is_field and any(map(is_array_type, types_alone)):
        value = _as_array(value)
    for_arrays = is_field and float in types_alone  # its checks also apply to arrays
    wrong_types: list[WrongTypeError] = []
    refusal: ValueError | None = None
    for kind, metadata in kinds:
        if kind in (None, type(None)) or (for_arrays and is_array_type(kind)):
            continue
        try:
            return _as(argument, value, kind, metadata, is_field)
        except WrongTypeError as error:
            if error.argument == argument:
                wrong_types.append(error)
            else:  # of an entry of a sequence
                refusal = refusal or error
        except ValueError as error:
            refusal = refusal or error
    if refusal is not None:  # a violated bound says more than the wrong type
        raise refusal
    expected = dict.fromkeys(error.problem for error in wrong_types)
    remedies = dict.fromkeys(error.remedy for error in wrong_types if error.remedy)
    raise WrongTypeError(argument, value, " or ".join(expected), "; ".join(remedies))


def _as(
    argument: str, value: Any, kind: Any, metadata: tuple[Any, ...], is_field: bool
) -> Any:
    if not is_field and any(isinstance(mark, KeyMark) for mark in metadata):
        check_key(argument, value)
        return value
    bounds = [bound for bound in metadata if isinstance(bound, Bound)]
    remedies = (text for text in metadata if isinstance(text, str))
    remedy = next((text for text in remedies if text not in (STATIC, LEAF)), "")
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return check_choice(argument, value, typing.get_args(kind))
    if kind is int:
        lower = (bound for bound in bounds if isinstance(bound, AtLeast | Above))
        lowest = next((int(bound.limit) for bound in lower), None)
        highest = INT32_MAX if bounds or is_field else None
        value = check_integer(argument, value, lowest, highest)
        if is_field:
            check_integer(argument, value, -INT32_MAX - 1)
        _check_bounds(argument, value, bounds, remedy)
        return value
    if kind is float and is_field:
        return _as_float(argument, value, bounds, remedy, metadata)
    if origin in _SEQUENCES and is_field:
        return _as_tuple(argument, value, typing.get_args(kind), bounds)
    if is_field and isinstance(value, str) and origin in _READERS:
        value = _from_text(argument, value, origin)
    words, fits = _type_check(kind, origin, is_field)
    if not fits(value):
        if isinstance(value, type) and is_part(kind):
            remedy = "call it"
        elif inspect.isclass(origin):
            remedy = vars(origin).get("remedy", remedy)
        raise WrongTypeError(argument, value, words, remedy)
    if kind is float or (is_array_type(kind) and not isinstance(value, Tracer)):
        _check_bounds(argument, value, bounds, remedy)
    return value


def reads_texts(kind: type, argument: str, reader: Callable[[str], Any]) -> None:
    """Let fields of parts that are annotated with a class of parts take texts too.

    Args:
        kind: the class.
        argument: that errors of the reader name; they name the field instead.
        reader: text -> part.
    """
    _READERS[kind] = argument, reader


def _from_text(argument: str, text: str, kind: type) -> Any:
    of_reader, read = _READERS[kind]
    try:
        return read(text)
    except ArgumentError as error:
        if error.argument != of_reader:  # of a constructor in the text
            raise
        raise error.renamed(argument) from None


def _as_python(value: Any) -> Any:
    """Convert NumPy's numbers, and JAX's integers of known value, to Python's."""
    kinds = ""
    if isinstance(value, np.generic | np.ndarray):
        kinds = "biuf"
    elif isinstance(value, jax.Array) and not isinstance(value, Tracer):
        kinds = "" if is_key(value) else "iu"
    if kinds and value.ndim == 0 and value.dtype.kind in kinds:
        return value.item()
    return value


def _type_check(
    kind: Any, origin: Any, is_field: bool
) -> tuple[str, Callable[[Any], bool]]:
    """Return the description and the test of a type; any value passes that of a type that is not checked."""
    for checked_type in (kind, origin):
        if checked_type in _KINDS:
            return _KINDS[checked_type]
    is_class = inspect.isclass(origin) and origin not in (Any, complex, object)
    if not is_class or getattr(origin, "_is_protocol", False):
        return "", lambda value: True
    # `driver.prepare` checks the classes of `base`.
    if not is_part(origin) if is_field else origin.__module__ == BASE:
        return "", lambda value: True
    article = "an" if origin.__name__[0] in "AEIOU" else "a"
    return f"{article} {origin.__name__}", lambda value: isinstance(value, origin)


def _as_float(
    argument: str, value: Any, bounds: Sequence[Any], remedy: str, metadata: Sequence[Any]
) -> Any:
    is_static = STATIC in metadata  # an array has no hash
    if isinstance(value, Tracer) and not is_static:
        return value
    is_array = isinstance(value, np.ndarray | jax.Array) and is_real(value.dtype)
    if is_array and not is_static:
        number = value
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            number = value = value.astype(float)
    elif is_number(value):
        number = float(value)
    else:
        raise WrongTypeError(argument, value, "a number", remedy)
    max_ndim = next((axes.most for axes in metadata if isinstance(axes, Axes)), 1)
    finite = remedy or "give a finite number"
    check_numbers(argument, np.abs(number), finite, max_ndim=max_ndim)
    dtype = None if is_static else jnp.result_type(float)
    _check_bounds(argument, value, bounds, remedy, dtype)
    return number


def _check_bounds(
    argument: str, value: Any, bounds: Sequence[Any], remedy: str, dtype: Any = None
) -> None:
    for bound in bounds:
        as_given = np.asarray(value)
        in_program = np.asarray(value, dtype)
        for where in np.argwhere(~np.asarray(bound.holds(in_program))).tolist()[:1]:
            problem = f"must be {bound}"
            if bound.holds(as_given[tuple(where)]):
                problem += f", it is {in_program[tuple(where)]} as {dtype}"
            if not where:
                raise ArgumentError(argument, value, problem, remedy)
            place = ", ".join(map(str, where))
            entry = as_given[tuple(where)]
            raise ArgumentError(f"{argument}[{place}]", entry, problem, remedy)


def _as_array(value: Any) -> Any:
    """Convert lists of plain numbers to an array, return anything else unchanged."""
    if not isinstance(value, list | tuple):
        return value
    number_types = numbers.Number | np.generic
    if not all(isinstance(leaf, number_types) for leaf in jax.tree.leaves(value)):
        return value
    try:
        return np.asarray(value)
    except ValueError:  # rows of unequal length
        return value


def _as_tuple(
    argument: str, value: Any, inside: tuple[Any, ...], bounds: Sequence[Any]
) -> Any:
    if isinstance(value, str | bytes | Mapping) or not np.iterable(value):
        raise WrongTypeError(argument, value, f"a sequence, e.g. ({short(value)},)")
    entries = value.tolist() if isinstance(value, np.ndarray) else list(value)
    kinds = [inside[0] if inside else Any] * len(entries)
    if len(inside) > 1 and inside[-1] is not Ellipsis:  # one type for each place
        kinds = list(inside)
    if len(kinds) != len(entries):
        problem = f"must be {len(kinds)} values, not {len(entries)}"
        raise ArgumentError(argument, value, problem)
    checked_entries = []
    for i, entry in enumerate(entries):
        hint = kinds[i]
        if bounds:
            hint = Annotated[hint, *bounds]
        checked_entries.append(as_annotated(f"{argument}[{i}]", entry, hint))
    return tuple(checked_entries)


def _is_sequence(value: Any) -> bool:
    is_text_or_mapping = isinstance(value, str | bytes | Mapping)
    return np.iterable(value) and not is_text_or_mapping and not is_key(value)


def _is_array(value: Any) -> bool:
    """Return True if a value converts to a NumPy array with axes, of numbers, booleans or strings."""
    if is_key(value) or np.ma.isMaskedArray(value):  # its mask would be lost
        return False
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    if array.dtype == object:
        return array.ndim > 0 and all(isinstance(entry, str) for entry in array.flat)
    return array.ndim > 0


_SEQUENCES = (tuple, list, Sequence)
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("a flag, True or False", lambda value: isinstance(value, bool)),
    float: ("a number", is_number),
    str: ("a string", lambda value: isinstance(value, str)),
    Callable: ("a function", callable),
    np.ndarray: ("an array without a mask", _is_array),
    jax.Array: (
        "an array",
        lambda value: isinstance(value, jax.Array | np.ndarray | np.generic),
    ),
}
_KINDS |= dict.fromkeys(
    (Path, os.PathLike), ("a path", lambda value: isinstance(value, str | os.PathLike))
)
_KINDS |= dict.fromkeys(
    (Mapping, dict), ("a mapping", lambda value: isinstance(value, Mapping))
)
_KINDS |= dict.fromkeys(
    (*_SEQUENCES, Iterable, Collection), ("a sequence, e.g. a list", _is_sequence)
)


def is_ours(error: BaseException) -> bool:
    """Return True if this package raised the error on purpose; errors of other code are bugs that keep a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(PACKAGE)
