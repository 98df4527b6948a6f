"""Checks of input: each raises a ValueError of one line with the argument, the value and the remedy."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import os
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

INT32_MAX = 2**31 - 1  # integers in programs are int32

P = ParamSpec("P")
R = TypeVar("R")


def short(value: Any) -> str:
    """`repr` in one line of at most 60 characters; of a function, its name."""
    named = inspect.isroutine(value) or inspect.isclass(value)
    try:
        text = f"{value.__module__}.{value.__qualname__}" if named else " ".join(repr(value).split())
    except ValueError:  # an integer of more digits than Python writes
        text = f"{type(value).__name__} of very many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_known(kind: str, names: Iterable[object], known: Iterable[str], more: str = "") -> None:
    """Raise a ValueError of one line for the first name that is not known: the nearest known ones first, then all."""
    known = list(known)
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            raise ValueError(f"unknown {kind} {short(name)}{hint}; choose from {', '.join(known)}{more}")


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint in brackets with similar known names, or nothing."""
    others = {*known} - {str(name)}  # a name is no hint for itself
    close = difflib.get_close_matches(str(name), sorted(others), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def check_choice(argument: str, value: Any, choices: Iterable[str]) -> str:
    """`value`, or a ValueError of one line unless it is one of the choices; the nearest ones come first."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        hint = nearest(value, choices)
        raise ValueError(f"{argument}={short(value)} is unknown{hint}; choose from {', '.join(choices)}")
    return value


def check_integer(argument: str, value: Any, minimum: int, maximum: int | None = INT32_MAX, otherwise: str = "") -> int:
    """`value` as an int, or a ValueError of one line unless it is an integer in minimum..maximum (None: no bound).

    `otherwise` names what else the caller accepts.
    """
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        or_else = f", or {otherwise}" if otherwise else ""
        traced = ", known before tracing" if isinstance(value, Tracer) else ""
        raise ValueError(f"{argument}={short(value)} must be an integer{traced}, at least {minimum}{or_else}")
    if number < minimum:
        raise ValueError(f"{argument}={short(number)} must be at least {minimum}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{argument}={short(number)} must be at most {maximum}")
    return number


def check_folder(argument: str, folder: Path) -> Path:
    """A folder, created if missing, or a ValueError of one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # also of a name with NUL
        reason = "is a file" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or error
        raise ValueError(f"{argument}={str(folder)!r}: {reason}; give a folder that can be written to") from None
    return folder


def check_integers(argument: str, values: Any, minimum: int) -> tuple[int, ...]:
    """`values` as a tuple of ints, or a ValueError of one line unless they are integers of at least `minimum`."""
    if isinstance(values, str | bytes) or not np.iterable(values):
        raise ValueError(f"{argument}={short(values)} must be several integers; ({short(values)},) is one of them")
    return tuple(check_integer(f"{argument}[{i}]", value, minimum) for i, value in enumerate(values))


def is_key(value: Any) -> bool:
    """True for a typed key, or an array of them."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def check_key(argument: str, value: Any) -> None:
    """Raise a ValueError of one line unless `value` is a typed key, or an array of them."""
    if not is_key(value):
        kind = f"of type {value.dtype}" if isinstance(value, jax.Array) else short(value)
        raise ValueError(f"{argument} is {kind}, not a typed key; use jax.random.key(seed)")


def is_number(value: Any) -> bool:
    """True for one real number of known value: of Python, of NumPy, or an array without axes."""
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, Tracer):
        return value.ndim == 0 and is_real(value.dtype)
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not _overflows(value)


def _overflows(value: numbers.Real) -> bool:
    """True for an integer that is too large for any float."""
    try:
        float(value)
    except OverflowError:
        return True
    return False


def is_real(dtype: Any) -> bool:
    """True for types of integers and floats."""
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def check_numbers(argument: str, value: Any, remedy: str, *, positive: bool = False, max_ndim: int = 1) -> None:
    """Raise a ValueError of one line unless `value` holds finite numbers >= 0 (> 0 if `positive`).

    They must stay so as floats of a program, float32 unless x64 is on. Tracers pass, since their values are unknown.
    """
    if isinstance(value, Tracer) or is_key(value):
        numbers, kind = None, value.dtype
    else:
        try:
            numbers = np.asarray(value)
        except ValueError:  # rows of unequal length
            shown = short(value)
            raise ValueError(f"{argument} must be a rectangular array of numbers, got {shown}; {remedy}") from None
        kind = numbers.dtype
    if not is_real(kind):
        raise ValueError(f"{argument} must be of real numbers, got {short(value)}; {remedy}")
    if np.ndim(value) > max_ndim:
        raise ValueError(f"{argument} must have at most {max_ndim} axes, got shape {np.shape(value)}; {remedy}")
    if numbers is None:
        return
    with np.errstate(over="ignore", under="ignore"):
        in_program = numbers.astype(jnp.result_type(float))
    bad = ~np.isfinite(in_program) | (in_program <= 0 if positive else numbers < 0)
    if np.any(bad):
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" at index {index[0] if len(index) == 1 else index}" if index else ""
        sign = "positive" if positive else ">= 0"
        lost = np.isfinite(numbers[index]) and (numbers[index] > 0 or (not positive and numbers[index] >= 0))
        as_float = f", which is {in_program[index]} as {in_program.dtype}" if lost else ""
        raise ValueError(f"{argument} must be finite and {sign}, got {numbers[index]}{as_float}{place}; {remedy}")


def per_example(losses: Any, num_examples: int) -> Any:
    """Return the losses, or raise a ValueError of one line unless there is one number for each example of a batch.

    Other shapes would broadcast against the weights of the examples and give a wrong gradient.
    """
    shape = getattr(losses, "shape", type(losses).__name__)
    if shape != (num_examples,):
        raise ValueError(
            f"loss returned {shape} for {num_examples} examples, it must return ({num_examples},): one number for "
            "each; leave out the mean over them, and take outputs[:, 0] where a model has one output"
        )
    return losses


def updates_of(optimizer: Any, gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
    """`optimizer.update`, or a ValueError of one line if it needs more than a gradient."""
    try:
        return optimizer.update(gradient, state, params)
    except TypeError as error:
        if "required keyword-only argument" not in str(error):
            raise
        raise ValueError(
            f"optimizer: {error}; a step gets the gradient and no loss, so give no line search and none that follows "
            "the loss, but e.g. optax.adam(1e-3)"
        ) from None


def check_step_size(argument: str, value: Any) -> Any:
    """`value`, or a ValueError of one line unless it is a positive number, or a tracer."""
    check_numbers(argument, value, "give a step size, e.g. 0.1", positive=True, max_ndim=0)
    return value


REMEDIES = {  # for anything else in place of a part, or a part that was not called
    "Clock": "give srp.clocks.Fixed(srp.clocks.Exponential(1.0)) or another of srp.clocks",
    "Distribution": "give one of srp.clocks, e.g. Exponential(rate=1.0), or Constant(times) for times of your own",
    "FederatedData": "give srp.data.load(name, ...), or srp.data.from_arrays(...)",
    "LinearTask": "give srp.data.linear_task(key, num_clients, dim, rank)",
    "Optimizer": "give e.g. srp.SGD(0.01)",
    "ParticipationPolicy": "give srp.participation.Full() or another of srp.participation",
    "SplitModel": "give one of srp.models, called: srp.models.MLP(input_shape, num_classes)",
    "Training": "give srp.Training(optimizer=srp.SGD(0.01), batch_size=10, epochs=1)",
}


def checked(function: Callable[P, R], least: int | None = None) -> Callable[P, R]:
    """Make a function refuse, in one line, arguments of other types than its signature has.

    Texts, flags, numbers, paths, keys, functions, mappings, sequences, arrays and parts are checked, integers only with
    `least`; NumPy's numbers are numbers. Annotations have bounds and choices as those of parts: `Count`,
    `Annotated[float, AtLeast(0)] | None`, `Literal`. The function checks everything else itself. For texts and
    sequences its own error comes first, since it may list the choices.

    Args:
        function: with annotations.
        least: of every `int`; None leaves integers to the function.
    """
    signature = inspect.signature(function)
    starred = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {
        name: parameter.annotation for name, parameter in signature.parameters.items() if parameter.kind not in starred
    }

    @functools.cache  # when called, types defined below the function exist
    def hint(argument: str) -> Any:
        return _as_type(function, named[argument])

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # too many arguments, or too few: Python says so
            return function(*args, **kwargs)
        given = {name: value for name, value in bound.arguments.items() if name in named}

        def check(is_last: bool) -> None:
            for name, value in given.items():
                _check_type(name, value, hint(name), least, is_last)

        check(is_last=False)
        bound.arguments.update({name: _plain_number(value) for name, value in given.items()})
        try:
            result = function(*bound.args, **bound.kwargs)
        except (TypeError, AttributeError, LookupError):
            check(is_last=True)
            raise
        check(is_last=True)
        return result

    return make


def _plain_number(value: Any) -> Any:
    """Convert a number or flag of NumPy, or an integer of JAX, to Python's; return anything else unchanged."""
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        return value.item() if value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.integer) else value
    is_one = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if is_one and value.dtype.kind in "biuf" else value


class _Key:
    """Marker of the type of a key, which is that of any array."""


def _as_type(function: Callable[..., Any], annotation: Any) -> Any:
    if annotation in ("Key", inspect.Parameter.empty):
        return _Key if annotation == "Key" else Any
    try:
        return eval(annotation, inspect.unwrap(function).__globals__) if isinstance(annotation, str) else annotation
    except NameError:  # imported for type checkers alone
        return Any


def _check_type(argument: str, value: Any, hint: Any, least: int | None, is_last: bool) -> None:
    if hint is _Key:
        return check_key(argument, value)
    if hint is int and least is not None:
        check_integer(argument, value, least)
        return None
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    hints = typing.get_args(hint) if is_union else (hint,)
    kind, *others = [kind for kind in hints if kind is not type(None)] or [None]
    if not others and (value is not None or type(None) not in hints):
        if typing.get_origin(kind) is typing.Annotated:
            return _check_bounds(argument, value, *typing.get_args(kind))
        if typing.get_origin(kind) is typing.Literal:
            check_choice(argument, value, typing.get_args(kind))
    kinds = [_known(kind) for kind in hints]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds) or any(fits(value) for _, fits in known):
        return None
    if not is_last and all(kind in (_TEXT, _SEVERAL, _NONE) for kind in known):
        return None
    words = [word for word, _ in known]
    remedies = [REMEDIES[name] for name in (word.split()[-1] for word in words) if name in REMEDIES]
    wanted = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    raise ValueError(f"{argument}={short(value)} must be {wanted}" + "".join(f"; {remedy}" for remedy in remedies[:1]))


def _check_bounds(argument: str, value: Any, kind: Any, *metadata: Any) -> None:
    """Raise a ValueError of one line unless a number is of its kind and within the bounds (of `parts`)."""
    remedy = "".join(f"; {text}" for text in metadata if isinstance(text, str))
    value = _plain_number(value)
    if kind is int:
        lowest = [int(bound.low) for bound in metadata if hasattr(bound, "low")]
        check_integer(argument, value, lowest[0] if lowest else -INT32_MAX)
    elif not is_number(value):
        raise ValueError(f"{argument}={short(value)} must be a number{remedy}")
    for bound in metadata:
        if not isinstance(bound, str) and not bound.holds(value):
            raise ValueError(f"{argument}={short(value)} must be {bound}{remedy}")


def _known(kind: Any) -> tuple[str, Callable[[Any], bool]] | None:
    """A type in words, and its test; None for types that are not checked."""
    if kind in _KINDS:
        return _KINDS[kind]
    origin = typing.get_origin(kind) or kind
    if origin is Callable:
        return "a function", callable
    if inspect.isclass(origin) and origin in _ABSTRACT:
        return ("a mapping", lambda value: isinstance(value, Mapping)) if issubclass(origin, Mapping) else _SEVERAL
    is_protocol = getattr(origin, "_is_protocol", False)
    if not inspect.isclass(origin) or is_protocol or origin in (Any, int, complex, object):
        return None
    if origin.__module__ == f"{__package__}.base":  # parts of a simulation, checked together
        return None
    return f"a {origin.__name__}", lambda value: isinstance(value, origin)


def _is_several(value: Any) -> bool:
    return np.iterable(value) and not isinstance(value, str | bytes | Mapping) and not is_key(value)


def _is_array(value: Any) -> bool:
    """True if a value converts to a NumPy array with axes, of numbers, flags or texts."""
    if is_key(value) or np.ma.isMaskedArray(value):  # whose mask would be lost
        return False
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    return array.ndim > 0 and (array.dtype != object or all(isinstance(entry, str) for entry in array.flat))


_SEVERAL = "several, e.g. a list", _is_several
_NONE = "None", lambda value: value is None
_TEXT = "a text", lambda value: isinstance(value, str)
_PATH = "a path", lambda value: isinstance(value, str | os.PathLike)
_ABSTRACT = (Mapping, dict, Iterable, Sequence, Collection, list, tuple)
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    None: _NONE,
    type(None): _NONE,
    bool: ("True or False", lambda value: isinstance(value, bool | np.bool_)),
    float: ("a number", is_number),
    str: _TEXT,
    Path: _PATH,
    os.PathLike: _PATH,
    np.ndarray: ("an array without a mask", _is_array),
    jax.Array: ("an array", lambda value: isinstance(value, jax.Array | np.ndarray | np.generic)),
}


def is_ours(error: BaseException, folder: Path = Path(__file__).parent) -> bool:
    """Return True if code in a folder, this package by default, raised an error on purpose.

    An error from deeper is a bug and keeps its traceback.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(folder)
