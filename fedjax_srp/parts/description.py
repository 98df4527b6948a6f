"""Descriptions of parts for the record of a run, and parts rebuilt from them.

`describe` converts a part to a dict of numbers, strings, lists and dicts with the name of its class; `rebuild` inverts
it. A record is data and is never executed: `rebuild` builds parts of this package and of modules that are imported
already, calls no function, and finds only those in the lists below. It imports nothing that a record names.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from fedjax_srp.parts import part as parts
from fedjax_srp.parts.checks import checked, short

P = ParamSpec("P")
T = TypeVar("T")

# keys of a description: class of a part, name of a function, undescribed object
PART = "part"
FUNCTION = "function"
UNKNOWN = "unknown"
DATACLASS = "dataclass"  # key: class of another dataclass, such as a module of flax
_PACKAGE = __name__.partition(".")[0]
# `__self__` of functions, class methods and builtins
_STATELESS = (type(None), type, types.ModuleType)
# of an array that is recorded in full; of longer ones, shape and checksum
_MAX_ENTRIES = 16
# importing these makes their parts known
_ROOMS = ("algorithms", "clocks", "messages", "models", "participation")
_MODELS = f"{_PACKAGE}.models"
_OPTIMIZERS = """
adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage
lamb lars lbfgs lion noisy_sgd novograd optimistic_adam optimistic_adam_v2
optimistic_gradient_descent polyak_sgd radam rmsprop rprop sgd sign_sgd signum sm3
yogi
"""
_SCHEDULES = """
constant_schedule cosine_decay_schedule cosine_onecycle_schedule exponential_decay
linear_onecycle_schedule linear_schedule piecewise_constant_schedule
piecewise_interpolate_schedule polynomial_schedule sgdr_schedule
warmup_constant_schedule warmup_cosine_decay_schedule
warmup_exponential_decay_schedule
"""
_LOSSES = """
cosine_distance hinge_loss huber_loss kl_divergence l2_loss log_cosh
sigmoid_binary_cross_entropy sigmoid_focal_loss softmax_cross_entropy
softmax_cross_entropy_with_integer_labels squared_error
"""
_ACTIVATIONS = """
celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu
log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_sign softmax softplus
sparse_plus sparse_sigmoid squareplus standardize swish tanh
"""
# What a record may name. Optimizers are called when a rebuilt method runs, so other functions are not in the list.
_FUNCTIONS: dict[str, Sequence[str]] = {
    "optax": [*_OPTIMIZERS.split(), *_SCHEDULES.split(), *_LOSSES.split()],
    "jax.nn": _ACTIVATIONS.split(),
    _MODELS: ["cross_entropy", "half_square"],
    f"{_MODELS}.split": ["identity"],
}
_FLAX_LAYERS = """
BatchNorm Conv Dense Embed GroupNorm LayerNorm RMSNorm Sequential
"""
# Modules of layers that a record may name.
_LAYERS: dict[str, Sequence[str]] = {
    "flax.linen": _FLAX_LAYERS.split(),
    _MODELS: ["Convolution", "Dense"],
}
_MADE_INSIDE = "<locals>"  # in the names of classes that may read variables around them
_LIBRARIES = {"builtins", "equinox", "flax", "jax", "jaxlib", "numpy", "optax"}


def describe(value: Any) -> Any:
    """Describe a value: `{"part": class, field: ...}`, or `{"unknown": ...}` if it has no description.

    Other dataclasses, such as modules of flax, have their class and the fields that are not at their default, a user's
    NamedTuples their class and fields. Classes and functions have their name alone: `own_code` finds a user's, which
    the program of a run tells apart. A closure or a method of an object is unknown, and so is what a decorator, or
    `jax.grad`, made of a function.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if parts.is_part(value) and not isinstance(value, type):
        named = {
            field.name: describe(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
        return {PART: parts.path_of(type(value)), **named}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Tracer):
        return {UNKNOWN: "a traced value"}
    if isinstance(value, Mapping):
        return {str(key): describe(entry) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = describe(value._asdict())  # type: ignore[attr-defined]
        name = _name(type(value))
        return {DATACLASS: name, **fields} if _is_own(name) else fields
    if isinstance(value, tuple | list | range):
        return [describe(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, functools.partial):
        return {
            "partial": describe(value.func),
            "arguments": describe([*value.args, value.keywords]),
        }
    if isinstance(value, np.dtype):
        return value.name
    if (
        hasattr(value, "options")
        and hasattr(value, "train_client")
        and not isinstance(value, type)
    ):  # data
        return {UNKNOWN: _name(value)} if value.options is None else value.options
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [
            field
            for field in dataclasses.fields(value)
            if field.repr or field.name != "parent"
        ]  # of flax
        given = {
            field.name: getattr(value, field.name)
            for field in shown
            if not _is_default(value, field)
        }
        entries = {name: describe(entry) for name, entry in given.items()}
        return {DATACLASS: _name(type(value)), **entries}
    name, inner = _name(value), _unwrapped(value)
    if isinstance(value, type):
        return {FUNCTION: name}
    has_state = getattr(inner, "__closure__", None) or not isinstance(
        getattr(inner, "__self__", None), _STATELESS
    )
    if not inspect.isroutine(inner) or has_state or "<lambda>" in name:
        return {UNKNOWN: name}
    return {FUNCTION: name}


def _unwrapped(value: Any) -> Any:
    """Return the function that jit or a library wraps; other wrappers, such as that of `jax.grad`, do more."""
    if not hasattr(value, "__wrapped__") or _public(_name(value))[1] is value:
        return inspect.unwrap(value) if callable(value) else value
    return inspect.unwrap(
        value,
        stop=lambda each: not type(each).__module__.startswith(("jax", "functools")),
    )


def _is_own(name: str) -> bool:
    """Return True for the name of a class or function of a user's own code."""
    return name.partition(".")[0] not in (_PACKAGE, *_LIBRARIES)


def is_own(value: Any) -> bool:
    """Return True for a class or function of a user's own code, also behind `functools.partial`."""
    while isinstance(value, functools.partial):
        value = value.func
    return _is_own(_name(value))


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    given, default = getattr(value, field.name), field.default
    written = describe(given)
    return given is default or (
        written == describe(default) and not any(unknowns(written))
    )


def _name(value: Any) -> str:
    """Return module and name of a class, a function, or another object: its field `name`, else its class."""
    name = None if isinstance(value, type) else getattr(value, "name", None)
    if not name or not isinstance(name, str):
        name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{getattr(value, '__module__', type(value).__module__)}.{name}"


def _array(value: Any) -> Any:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(
        value.dtype, jax.dtypes.prng_key
    ):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    array = np.asarray(value)
    if array.size <= _MAX_ENTRIES:
        return array.tolist()
    checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"shape": list(array.shape), "checksum": f"{checksum:08x}"}


def describe_data(data: Any) -> dict[str, Any]:
    """Describe data but for the values in arrays: classes, shapes and all that is static, at any depth.

    Classes of this package have only what is static, which with the checksum of their arrays is enough.
    """
    if isinstance(data, np.ndarray | jax.Array):
        return {"dtype": str(data.dtype), "shape": list(data.shape)}
    if dataclasses.is_dataclass(data):
        left_out = ("name", "options") if hasattr(data, "train_client") else ()
        names = (field.name for field in dataclasses.fields(data))
        given = {name: getattr(data, name) for name in names if name not in left_out}
    else:  # a class registered with JAX, or a container
        node = jax.tree.structure(data).node_data()
        inside = (
            ()
            if node is None
            else jax.tree.leaves(data, is_leaf=lambda each: each is not data)
        )
        given = {"static": node and node[1]} | {
            str(place): each for place, each in enumerate(inside)
        }
    is_ours = not _is_own(_name(type(data)))
    if is_ours:
        given = {
            name: each
            for name, each in given.items()
            if not isinstance(each, np.ndarray | jax.Array)
        }
    found = {
        name: _static(each) if parts.is_plain(each) else describe_data(each)
        for name, each in given.items()
    }
    found = {name: each for name, each in found.items() if each not in (None, {})}
    return found if is_ours else {"class": describe(type(data))} | found


def _static(value: Any) -> Any:
    """Describe a value, also a method of a part, such as the loss of a model."""
    owner = getattr(value, "__self__", None)
    return (
        {"method": value.__name__, "of": describe(owner)}
        if parts.is_part(owner)
        else describe(value)
    )


def unknowns(description: Any) -> Iterator[str]:
    """Yield the names of objects without a description."""
    if isinstance(description, Mapping):
        if UNKNOWN in description:
            yield str(description[UNKNOWN])
        description = [*description.values()]
    if isinstance(description, list | tuple):
        for entry in description:
            yield from unknowns(entry)


def own_code(description: Any) -> Iterator[str]:
    """Yield the names of a user's own classes and functions, and of objects without a description."""
    if isinstance(description, Mapping):
        if UNKNOWN in description:
            yield str(description[UNKNOWN])
        for key in (PART, DATACLASS, FUNCTION):
            if _is_own(str(description.get(key, _PACKAGE))):
                yield str(description[key])
        description = [*description.values()]
    if isinstance(description, list | tuple):
        for entry in description:
            yield from own_code(entry)


def rebuild(description: Any) -> Any:
    """Rebuild a part from its description.

    Raises:
        ValueError: of one line, if a part or a function in it is not known, or a value does not fit its part.
    """
    try:
        return _rebuilt(description)
    except RecursionError:
        raise ValueError(
            "a part of the record is nested too deeply to be rebuilt; build it in Python"
        ) from None


def _rebuilt(description: Any) -> Any:
    if isinstance(description, list):
        return tuple(_rebuilt(entry) for entry in description)
    if not isinstance(description, Mapping):
        return description
    if PART in description and UNKNOWN not in description:
        part = _known_part(str(description[PART]))
        if _MADE_INSIDE in str(description[PART]):
            name = short(description[PART])
            raise ValueError(
                f"{name} was made in a function; build it in Python, as for the first run"
            )
        fields = {
            key: _rebuilt(value) for key, value in description.items() if key != PART
        }
        required = {
            field.name: field.default is dataclasses.MISSING
            for field in dataclasses.fields(part)
        }
        missing = [
            field
            for field, is_required in required.items()
            if is_required and field not in fields
        ]
        if wrong := [*sorted(fields.keys() - required.keys()), *missing]:
            name = parts.path_of(part)
            different = f"record and class differ in field {short(wrong[0])}"
            raise ValueError(f"{name}: {different}; another version wrote the record")
        return part(**fields)
    if FUNCTION in description:
        name = str(description[FUNCTION])
        found = _listed(name, _FUNCTIONS)
        if found is None:
            libraries = ", ".join(_FUNCTIONS)
            known = f"the functions of {libraries} that a record may name"
            raise ValueError(
                f"function {short(name)} is not in {known}; build the part in Python"
            )
        return found
    if DATACLASS in description:
        name = str(description[DATACLASS])
        layer = _listed(name, _LAYERS)
        if layer is not None:
            entries = description.items()
            arguments = {key: _rebuilt(each) for key, each in entries if key != DATACLASS}
            try:
                return layer(**arguments)
            except TypeError as error:
                raise ValueError(
                    f"{name}: {error}; another version wrote the record"
                ) from None
    for key in (UNKNOWN, DATACLASS, "shape", "key", "partial"):
        if key in description:
            what = "an array of shape " if key == "shape" else ""
            raise ValueError(
                f"{what}{short(description[key])} cannot be rebuilt from its record; build it in Python, as for the "
                "first run, or write a class under @srp.part that makes it in a method"
            )
    return {key: _rebuilt(value) for key, value in description.items()}


def _known_part(name: str) -> Any:
    """Return a class of parts by its name in records."""
    if name not in parts.KNOWN:
        for room in _ROOMS:
            importlib.import_module(f"{_PACKAGE}.{room}")
    if name not in parts.KNOWN:
        raise ValueError(f"no part {short(name)} is known; import its module first")
    return parts.KNOWN[name]


def _public(name: str, libraries: Iterable[str] = _FUNCTIONS) -> tuple[str, Any]:
    """Return the library that has a public function of this name, and the function; "" and None if none has."""
    for library in libraries:
        found = getattr(importlib.import_module(library), name.rpartition(".")[2], None)
        if callable(found) and _name(found) == name:
            return library, found
    return "", None


def _listed(name: str, lists: Mapping[str, Sequence[str]]) -> Any:
    """Return the function or class of this name that a record may name; None for others."""
    library, found = _public(name, lists)
    is_listed = found is not None and name.rpartition(".")[2] in lists[library]
    return found if is_listed else None


def records_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a data factory record its arguments, including defaults, in the `options` of its result.

    Arguments that do not fit its annotations raise a ValueError.
    """
    signature, checking = inspect.signature(function), checked(function)

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        made = checking(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = {} if hasattr(made, "name") else {"name": function.__name__}
        written = {
            **named,
            **{name: describe(value) for name, value in bound.arguments.items()},
        }
        return dataclasses.replace(made, options=written)  # type: ignore[type-var]

    return make
