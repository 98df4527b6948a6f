"""What made a part, for the record of a run: every factory of the package writes down its arguments.

Algorithms, policies, clocks, distributions, models, data and SGD carry `options`, a mapping from the names of their
factory's arguments to plain values; None where nobody said. They explain a result and take no part in it: `Options` has
no leaves, so programs are shared between parts that differ in nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from fedjax_srp._checks import checked

P = ParamSpec("P")
Part = TypeVar("Part")

UNKNOWN = "unknown"  # the key of a value that cannot say what made it
_FEW = 16  # entries of an array that are written down; of larger ones, shape and checksum


class Options(dict[str, Any]):
    """Plain values by name; as a pytree it has no leaves, and nothing that tells two of them apart."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0


jax.tree_util.register_pytree_node(Options, lambda options: ((), None), lambda _, __: Options())


def recorded(factory: Callable[P, Part]) -> Callable[P, Part]:
    """Makes a factory write its arguments, defaults included, into `options` of what it returns.

    For factories of your own as well: what they make then tells runs apart that differ in more than the seed.

    Args:
        factory: of a `FederatedAlgorithm`, `ParticipationPolicy`, `Clock`, or anything else that can have `options`.

    Returns:
        The factory; it refuses arguments of other types than its signature has (`ValueError`).

    Example:
        >>> import fedjax_srp as srp
        >>> srp.clocks.fixed(srp.clocks.exponential(2.0)).options["distribution"]
        {'name': 'exponential', 'rate': 2.0}
    """
    signature, checking = inspect.signature(factory), checked(factory)

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Part:
        part = checking(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = {} if hasattr(part, "name") else {"name": factory.__name__}
        return with_options(part, {**named, **{name: describe(value) for name, value in bound.arguments.items()}})

    return make


def with_options(part: Any, options: Mapping[str, Any]) -> Any:
    """The part with these options, which follow a model that is cut elsewhere."""
    own = Options(options)
    if dataclasses.is_dataclass(part):
        return dataclasses.replace(part, options=own)  # pyright: ignore[reportArgumentType]
    fields = getattr(part, "_fields", ())
    if "recut" in fields:
        part = part._replace(recut=functools.partial(_recut, part.recut, own))
    if "options" in fields:
        return part._replace(options=own)
    part.options = own  # a function, or SGD
    return part


def _recut(recut: Callable[[str | None], Any], options: Options, cut: str | None) -> Any:
    return with_options(recut(cut), {**options, "cut": cut})


def describe(value: Any) -> Any:
    """A value in plain words: numbers, strings, lists, dicts; `{"unknown": ...}` for what cannot say what made it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Tracer):
        return {UNKNOWN: "a traced value"}
    if hasattr(value, "options"):
        named = {"name": value.name} if hasattr(value, "name") else {}
        return {**named, **({UNKNOWN: _name(value)} if value.options is None else value.options)}
    if isinstance(value, Mapping):
        return {str(key): describe(entry) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = describe(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
        return {UNKNOWN: _name(value)} if any(unknowns(fields)) else fields
    if isinstance(value, tuple | list):
        return [describe(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, functools.partial):
        return {"name": describe(value.func), "arguments": describe([*value.args, value.keywords])}
    if isinstance(value, type | np.dtype):
        return getattr(value, "__name__", str(value))
    name = _name(value)
    is_whole = inspect.isroutine(value) and not getattr(value, "__closure__", None) and "<lambda>" not in name
    return name if is_whole else {UNKNOWN: name}


def _name(value: Any) -> str:
    own = getattr(value, "name", None) or getattr(value, "__qualname__", type(value).__qualname__)
    return f"{getattr(value, '__module__', type(value).__module__)}.{own}"


def _array(value: Any) -> Any:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    array = np.asarray(value)
    if array.size <= _FEW:
        return array.tolist()
    checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"shape": list(array.shape), "checksum": f"{checksum:08x}"}


def unknowns(options: Any) -> Iterator[str]:
    """What stands in the options and cannot say what made it."""
    if isinstance(options, Mapping):
        if UNKNOWN in options:
            yield str(options[UNKNOWN])
        options = options.values()
    if isinstance(options, list | tuple | type({}.values())):
        for entry in options:
            yield from unknowns(entry)
