"""Descriptions of parts for the record of a run, and parts rebuilt from them.

`describe` converts a part to a dict of numbers, strings, lists and dicts with the name of its class; `rebuild` inverts
it. A record is data and is never executed: `rebuild` builds parts of this package and of modules that are imported
already, calls no function, and finds only those in the lists below. It imports nothing that a record names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import importlib
import inspect
import os
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from fedjax_srp.parts import options
from fedjax_srp.parts import part as parts
from fedjax_srp.parts.checks import checked, short

P = ParamSpec("P")
T = TypeVar("T")

PART, FUNCTION, UNKNOWN = (
    "part",
    "function",
    "unknown",
)  # keys: class of a part, name of a function, undescribed object
DATACLASS = "dataclass"  # key: class of another dataclass, such as a module of flax
CODE = "source code"  # key: checksum of the code of a user's class or function
_PACKAGE = __name__.partition(".")[0]
_STATELESS = (
    type(None),
    type,
    types.ModuleType,
)  # `__self__` of functions, class methods and builtins
_VALUES = (
    bool,
    int,
    float,
    str,
    tuple,
    list,
    dict,
    np.ndarray,
)  # constants of a class of a notebook
_NUMBERS = (
    bool,
    int,
    float,
    np.ndarray,
    np.generic,
    jax.Array,
)  # that a function reads from its module
_MAX_ENTRIES = (
    16  # of an array that is recorded in full; of longer ones, shape and checksum
)
_ROOMS = (
    "algorithms",
    "clocks",
    "models",
    "participation",
)  # importing these makes their parts known
_MODELS = f"{_PACKAGE}.models"
# What a record may name. Optimizers are called when a rebuilt method runs, so other functions are not in the list.
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "optax": (
        # optimizers
        *(
            "adabelief",
            "adadelta",
            "adafactor",
            "adagrad",
            "adam",
            "adamax",
            "adamaxw",
            "adamw",
            "adan",
            "amsgrad",
        ),
        *(
            "fromage",
            "lamb",
            "lars",
            "lbfgs",
            "lion",
            "noisy_sgd",
            "novograd",
            "optimistic_adam",
        ),
        *(
            "optimistic_adam_v2",
            "optimistic_gradient_descent",
            "polyak_sgd",
            "radam",
            "rmsprop",
            "rprop",
            "sgd",
        ),
        *("sign_sgd", "signum", "sm3", "yogi"),
        # schedules
        *(
            "constant_schedule",
            "cosine_decay_schedule",
            "cosine_onecycle_schedule",
            "exponential_decay",
        ),
        *("linear_onecycle_schedule", "linear_schedule", "piecewise_constant_schedule"),
        *(
            "piecewise_interpolate_schedule",
            "polynomial_schedule",
            "sgdr_schedule",
            "warmup_constant_schedule",
        ),
        *("warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule"),
        # losses
        *(
            "cosine_distance",
            "hinge_loss",
            "huber_loss",
            "kl_divergence",
            "l2_loss",
            "log_cosh",
        ),
        *("sigmoid_binary_cross_entropy", "sigmoid_focal_loss", "softmax_cross_entropy"),
        *("softmax_cross_entropy_with_integer_labels", "squared_error"),
    ),
    "jax.nn": (
        *(
            "celu",
            "elu",
            "gelu",
            "glu",
            "hard_sigmoid",
            "hard_silu",
            "hard_swish",
            "hard_tanh",
            "identity",
        ),
        *(
            "leaky_relu",
            "log_sigmoid",
            "log_softmax",
            "mish",
            "relu",
            "relu6",
            "selu",
            "sigmoid",
            "silu",
            "soft_sign",
        ),
        *(
            "softmax",
            "softplus",
            "sparse_plus",
            "sparse_sigmoid",
            "squareplus",
            "standardize",
            "swish",
            "tanh",
        ),
    ),
    _MODELS: ("cross_entropy", "half_square"),
}
_KNOWN_PACKAGES = {
    _PACKAGE,
    "builtins",
    "equinox",
    "flax",
    "jax",
    "numpy",
    "optax",
}  # no checksum of their code
_WITHOUT_CODE = {
    *_KNOWN_PACKAGES,
    *sys.stdlib_module_names,
}  # a user's file may have the name of a module in them
_STANDARD_LIBRARY = os.path.dirname(
    os.__file__
)  # by path, since a user's file may have the name of a module in it


def describe(value: Any) -> Any:
    """Describe a value: `{"part": class, field: ...}`, or `{"unknown": ...}` if it has no description.

    Other dataclasses, such as modules of flax, have their class and the fields that are not at their default, a user's
    NamedTuples their class and fields. A user's classes and functions have a checksum of their source code, or byte
    code without it, and of the numbers and arrays of their modules that functions and methods read, including base
    classes but not the functions that they call. A function has its defaults too; a closure, a class with one, or a
    method of an object, is unknown, and so is what a decorator, or `jax.grad`, made of a function.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if parts.is_part(value) and not isinstance(value, type):
        named = {
            field.name: describe(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
        return {PART: parts.path_of(type(value)), **_code(type(value)), **named}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Tracer):
        return {UNKNOWN: "a traced value"}
    if isinstance(value, Mapping):
        return {str(key): describe(entry) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        code = _code(type(value))
        of_class = {DATACLASS: _name(type(value)), **code} if code else {}
        return of_class | describe(value._asdict())  # type: ignore[attr-defined]
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
        return {DATACLASS: _name(type(value)), **_code(type(value)), **entries}
    name, inner = _name(value), _unwrapped(value)
    if isinstance(value, type):
        return {FUNCTION: name, **_code(value)}
    has_state = getattr(inner, "__closure__", None) or not isinstance(
        getattr(inner, "__self__", None), _STATELESS
    )
    if not inspect.isroutine(inner) or has_state or "<lambda>" in name:
        return {UNKNOWN: name}
    code = _code(inner)
    defaults = [
        *(getattr(inner, "__defaults__", None) or ()),
        *(getattr(inner, "__kwdefaults__", None) or {}).values(),
    ]
    owner = getattr(inner, "__self__", None)  # of a class method
    of_class = (
        {"class": describe(owner)} if isinstance(owner, type) and _code(owner) else {}
    )
    return {
        FUNCTION: name,
        **code,
        **of_class,
        **({"defaults": describe(defaults)} if code and defaults else {}),
    }


def _unwrapped(value: Any) -> Any:
    """Return the function that jit or a library wraps; other wrappers, such as that of `jax.grad`, do more."""
    if not hasattr(value, "__wrapped__") or _public(_name(value))[1] is value:
        return inspect.unwrap(value) if callable(value) else value
    return inspect.unwrap(
        value,
        stop=lambda each: not type(each).__module__.startswith(("jax", "functools")),
    )


@functools.cache
def _code(value: Any) -> dict[str, str]:
    checksum, reads_around = 0, False
    for each in value.__mro__ if isinstance(value, type) else (value,):
        members = (
            [*vars(each).values()] if isinstance(value, type) else []
        )  # Python finds only these of a notebook
        reads_around = reads_around or any(map(_reads_around, members))
        if not (own := _source(each)):
            members = [
                getattr(member, "fget", member) for member in members
            ]  # of properties
        sources = [own, *map(_source, members)]
        if not own and _package_of(each) not in _WITHOUT_CODE:
            compiled = (
                [] if any(sources) else [_compiled(member) for member in (each, *members)]
            )
            named = vars(each).items() if isinstance(value, type) else ()
            values = [
                (name, describe(of))
                for name, of in named
                if isinstance(of, _VALUES) and name[:2] != "__"
            ]
            sources += [*compiled, *map(str, values)]
        for source in [*sources, *map(_numbers_read, (each, *members))]:
            checksum = zlib.crc32(source.encode(), checksum)
    code = {CODE: f"{checksum:08x}"} if checksum else {}
    return code | {UNKNOWN: _name(value)} if reads_around else code


def _reads_around(member: Any) -> bool:
    """Return True for a user's method that reads variables, not just modules, of the function around its class."""
    function = inspect.unwrap(
        getattr(member, "fget", getattr(member, "__func__", member))
    )
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return any(
        name != "__class__" and not _is_module(cell) for name, cell in cells
    ) and bool(_source(function))


def _is_module(cell: types.CellType) -> bool:
    with contextlib.suppress(ValueError):  # an empty cell
        return inspect.ismodule(cell.cell_contents)
    return False


def _compiled(value: Any) -> str:
    """Return the byte code of a function as text, for code that Python was given as a string; "" for other objects."""
    code = (
        value
        if isinstance(value, types.CodeType)
        else getattr(inspect.unwrap(value), "__code__", None)
    )
    if code is None:
        return ""
    constants = [
        _compiled(of) or (sorted(map(repr, of)) if isinstance(of, frozenset) else of)
        for of in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _numbers_read(value: Any) -> str:
    """Return the numbers and arrays of its module that a user's function reads, as text; "" for other objects."""
    function = inspect.unwrap(getattr(value, "fget", getattr(value, "__func__", value)))
    is_library = _package_of(function) in _WITHOUT_CODE and not _source(function)
    if is_library or not inspect.isfunction(function):
        return ""
    found = {
        name: _as_numbers(function.__globals__.get(name))
        for name in sorted(_globals_in(function.__code__))
    }
    read = {name: numbers for name, numbers in found.items() if numbers is not None}
    return str(read) if read else ""


def _globals_in(code: types.CodeType) -> set[str]:
    """Return the global names that a code reads; names of attributes are none."""
    inside = (
        _globals_in(constant)
        for constant in code.co_consts
        if isinstance(constant, types.CodeType)
    )
    read = (
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    return set(read).union(*inside)


def _as_numbers(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Describe a number, an array, or a list or tuple of them; None for other objects and lists around themselves."""
    if isinstance(value, tuple | list):
        inside = (
            None
            if id(value) in around
            else [_as_numbers(entry, (*around, id(value))) for entry in value]
        )
        return (
            None if inside is None or any(entry is None for entry in inside) else inside
        )
    is_objects = isinstance(value, np.ndarray) and value.dtype.hasobject
    return describe(value) if isinstance(value, _NUMBERS) and not is_objects else None


def _source(value: Any) -> str:
    """Return the source code of a user's class or function; "" if Python does not find it."""
    value = inspect.unwrap(value) if inspect.isroutine(value) else value
    with contextlib.suppress(OSError, TypeError):
        if _is_user_code(value):
            return inspect.getsource(value)
    return ""


def _is_user_code(value: Any) -> bool:
    file = os.path.abspath(inspect.getsourcefile(value) or "")
    is_standard = file.startswith(_STANDARD_LIBRARY + os.sep) and "-packages" not in file
    return not is_standard and _package_of(value) not in _KNOWN_PACKAGES


def _package_of(value: Any) -> str:
    return str(getattr(value, "__module__", _PACKAGE)).partition(".")[0]


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    given, default = getattr(value, field.name), field.default
    written = describe(given)
    return given is default or (
        written == describe(default) and not any(unknowns(written))
    )


def _name(value: Any) -> str:
    name = getattr(value, "name", None)
    if not name or not isinstance(name, str):  # a class may have a property of this name
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
    is_ours = _package_of(type(data)) == _PACKAGE
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


def option_values(given: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe the options of a part by short names, as in tables."""
    return {
        name: describe(value)
        for name, value in options.values_of(given, leave_out).items()
    }


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
        fields = {
            key: _rebuilt(value)
            for key, value in description.items()
            if key not in (PART, CODE)
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
        library, found = _public(name)
        if found is None or name.rpartition(".")[2] not in _FUNCTIONS[library]:
            libraries = ", ".join(_FUNCTIONS)
            known = f"the functions of {libraries} that a record may name"
            raise ValueError(
                f"function {short(name)} is not in {known}; build the part in Python"
            )
        return found
    for key in (UNKNOWN, DATACLASS, "checksum", "key", "partial"):
        if key in description:
            raise ValueError(
                f"{short(description[key])} cannot be rebuilt from its record; build it in Python, as for the first run"
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


def _public(name: str) -> tuple[str, Any]:
    """Return the library that has a public function of this name, and the function; "" and None if none has."""
    for library in _FUNCTIONS:
        found = getattr(importlib.import_module(library), name.rpartition(".")[2], None)
        if callable(found) and _name(found) == name:
            return library, found
    return "", None


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
