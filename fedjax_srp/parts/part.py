"""Parts: frozen dataclasses that are pytrees by their annotations.

Algorithms, policies, clocks, distributions, models and optimizers are parts. A field that is annotated as a float, an
array or a part is a leaf; everything else is static. Therefore:

* the engine passes parts to `jax.jit` as arguments: another learning rate, or a rebuilt part, compiles nothing; another
  number of epochs, or momentum instead of None, does;
* `jax.vmap` over leaves runs a batch of rates, `jax.grad` differentiates with respect to them;
* fields are the record of a run, the options of the command line, and the axes of a grid.

Annotations declare checks, which run when a part is built, never when JAX unflattens one. Use None, which is not a
leaf, instead of a zero that removes a computation.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import GetAttrKey, keystr

from fedjax_srp.parts.bounds import Above as Above
from fedjax_srp.parts.bounds import AtLeast as AtLeast
from fedjax_srp.parts.bounds import AtMost as AtMost
from fedjax_srp.parts.bounds import Axes as Axes
from fedjax_srp.parts.bounds import Below as Below
from fedjax_srp.parts.checks import (
    LEAF,
    STATIC,
    as_annotated,
    evaluate,
    is_array_type,
    is_key,
    is_part,
    short,
    types_of,
    unknown_keyword,
)

T = TypeVar("T")
Static = Annotated[T, STATIC]  # a float that shapes the program, e.g. `Static[float]`
Leaf = Annotated[T, LEAF]  # a pytree of another kind
_dotted = functools.partial(keystr, simple=True, separator=".")  # of a path in a pytree


Count = Annotated[int, AtLeast(1)]
StepSize = Annotated[float, Above(0), "give a step size, e.g. 0.1"]
Share = Annotated[float, AtLeast(0), AtMost(1), "give a number from 0 to 1"]
Weighting = typing.Literal["uniform", "num_examples"]


# Module and name -> class, for every class of parts in this process.
KNOWN: dict[str, type] = {}
_registered: set[type] = set()


class _Frozen:
    """Static value of a leaf, such as a schedule in place of a number."""

    def __init__(self, value: Any):
        self.value = value


jax.tree_util.register_pytree_node(
    _Frozen,
    lambda node: ((), (node.value, _kinds(node.value))),
    lambda static, _: _Frozen(static[0]),
)


_CONVERTER = "converter"  # in the metadata of a field


def field(*, converter: Callable[[Any], Any], default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a part whose value is converted when the part is built, after the check of its annotation.

    The converter raises a ValueError for a value that it cannot convert, and returns a converted one unchanged.
    """
    return dataclasses.field(default=default, metadata={_CONVERTER: converter})


class Fields(NamedTuple):
    """Fields of a class of parts."""

    leaves: tuple[str, ...]
    static: tuple[str, ...]
    hints: dict[str, Any]  # every field -> its annotation


@typing.dataclass_transform(
    frozen_default=True, field_specifiers=(dataclasses.field, field)
)
def part(cls: type[T]) -> type[T]:
    """Make a class a part: a frozen dataclass that is a pytree, see the module.

    Its `name` is by default the class name in lower case.

    Fields are checked when a part is built: types, bounds (`AtLeast` and the like), choices (`Literal`); those with a
    `field(converter=...)` are then converted. A `__post_init__` of the class runs after that, to check combinations of
    fields. `dataclasses.replace` copies a part with other values.

    Raises:
        ValueError: a part is built with a value out of range; one line.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> from typing import Annotated
        >>> @srp.part
        ... class Penalty:
        ...     strength: Annotated[float, srp.AtLeast(0)] = 0.1  # a leaf
        ...     kind: str = "l2"  # static
        >>> jax.tree.leaves(Penalty(0.5)), Penalty() == Penalty(0.1)
        ([0.5], True)
    """
    inherited: list[str] = []
    if dataclasses.is_dataclass(cls):
        inherited = [field.name for field in dataclasses.fields(cls)]
    if "name" not in {*vars(cls), *inspect.get_annotations(cls), *inherited}:
        cls.name = cls.__name__.lower()  # type: ignore[attr-defined]
    hook = getattr(cls, "__post_init__", None)

    def refuse_forgotten(self: Any) -> None:
        if "__is_part__" not in vars(type(self)):  # its fields are not read
            raise ValueError(
                f"class {type(self).__name__} inherits from {made.__name__}: put @srp.part above it"
            )

    def check(self: Any) -> None:
        refuse_forgotten(self)  # the dataclass of another decorator
        if type(self) is made:  # once, by the most derived class
            _check(self)
        if hook is not None:
            hook(self)
        if type(self) is made:
            _check_hashable(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    made = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    with_fields = made.__init__
    signature = inspect.signature(with_fields)

    @functools.wraps(with_fields)
    def start(self: Any, *args: Any, **given: Any) -> None:
        refuse_forgotten(self)  # before arguments that this class does not have
        problem = unknown_keyword(signature, given)
        if problem:
            raise TypeError(f"{made.__name__}() {problem}")
        _register(made)
        with_fields(self, *args, **given)

    made.__init__ = start  # type: ignore[method-assign]
    made.__eq__, made.__hash__, made.__repr__ = _equal, _hash, _repr  # type: ignore[method-assign,assignment]
    made.__is_part__ = path_of(made)  # type: ignore[attr-defined]
    caller = sys._getframe(1)  # its local names may be gone later
    scope = {**caller.f_globals, **caller.f_locals, made.__name__: made}
    made.__hints__ = evaluate(inspect.get_annotations(made), scope)  # type: ignore[attr-defined]
    made.__reduce__ = _reduce  # type: ignore[method-assign]
    _register(made)
    return made


def _register(cls: type) -> None:
    """Make a class known to JAX and to records, once.

    A class that another process defined, in a script or a notebook, comes here when its first part is built or
    unpickled.
    """
    if cls in _registered:
        return
    _registered.add(cls)
    KNOWN[path_of(cls)] = cls
    jax.tree_util.register_pytree_with_keys(
        cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten
    )


def _reduce(self: Any) -> tuple[Any, ...]:
    return _unpickled, (type(self), vars(self))


def _unpickled(cls: type, values: Mapping[str, Any]) -> Any:
    """Rebuild a part without checks, which it has passed."""
    _register(cls)
    new = object.__new__(cls)
    new.__dict__.update(values)
    return new


def path_of(cls: type) -> str:
    """Return module and name of a class, for records."""
    return f"{cls.__module__}.{cls.__qualname__}"


def undefined(method: Callable[..., Any]) -> NoReturn:
    """Raise a NotImplementedError of one line for a method of a base class."""
    given = ", ".join(["self", *inspect.signature(method).parameters])
    owner = type(method.__self__).__name__  # type: ignore[attr-defined]
    raise NotImplementedError(f"{owner} defines no {method.__name__}({given})")


@functools.cache
def fields(cls: type) -> Fields:
    """Return the fields of a class of parts, in their order."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    hints = _hints(cls)
    leaves = tuple(name for name in names if is_leaf(hints[name]))
    static = tuple(name for name in names if name not in leaves)
    return Fields(leaves, static, {name: hints[name] for name in names})


def _hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class; `Any` for names that only type checkers know."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        hints |= vars(base).get("__hints__") or inspect.get_annotations(base)
        module = inspect.getmodule(base) or typing
        hints = evaluate(hints, {**vars(module), base.__name__: base})
    return {name: Any if isinstance(hint, str) else hint for name, hint in hints.items()}


def is_leaf(hint: Any) -> bool:
    """Return True if a field with this annotation is a leaf."""
    for kind, metadata in types_of(hint):
        if STATIC in metadata or LEAF in metadata:
            return LEAF in metadata
        if kind is float or is_array_type(kind) or is_part(kind):
            return True
        is_container = typing.get_origin(kind) in (dict, tuple, list, Mapping, Sequence)
        if is_container and any(map(is_leaf, typing.get_args(kind))):
            return True
    return False


def _frozen(value: Any) -> Any:
    if isinstance(value, str) or (callable(value) and not is_part(value)):
        return _Frozen(value)
    return value


def _flatten(self: Any) -> tuple[list[Any], tuple[Any, Any]]:
    of_class = fields(type(self))
    static = tuple(getattr(self, name) for name in of_class.static)
    leaves = [_frozen(getattr(self, name)) for name in of_class.leaves]
    return leaves, (static, _kinds(static))


def _kinds(value: Any) -> Any:
    """Return what distinguishes values that Python calls equal: 1, True and 1.0, 0.0 and -0.0, NamedTuples."""
    if isinstance(value, tuple):
        return type(value), *map(_kinds, value)
    value = value.item() if isinstance(value, np.generic) else value
    return type(value), isinstance(value, float) and math.copysign(1, value)


def _flatten_with_keys(self: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, Any]]:
    values, static = _flatten(self)
    keys = map(GetAttrKey, fields(type(self)).leaves)
    return list(zip(keys, values, strict=True)), static


def _unflatten(cls: type, static: Any, values: Iterable[Any]) -> Any:
    """Rebuild a part without checks: its leaves may be tracers, axes and placeholders."""
    of_class = fields(cls)
    new = object.__new__(cls)
    new.__dict__.update(zip(of_class.static, static[0], strict=True))
    for name, value in zip(of_class.leaves, values, strict=True):
        new.__dict__[name] = value.value if isinstance(value, _Frozen) else value
    return new


def _equal(self: Any, other: Any) -> bool:
    if type(self) is not type(other):
        return False
    ours, structure = jax.tree.flatten(self)
    theirs, structure_of_other = jax.tree.flatten(other)
    return structure == structure_of_other and all(map(_same, ours, theirs))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if is_key(one) != is_key(other):
        return False
    if is_key(one):
        return bool(np.all(jax.random.key_data(one) == jax.random.key_data(other)))
    is_equal = type_of(one) == type_of(other)
    return is_equal and bool(np.all(np.asarray(one) == np.asarray(other)))


def type_of(leaf: Any) -> tuple[Any, ...]:
    """Return shape, type and weak type of a leaf: programs for others of its kind differ."""
    is_array = hasattr(leaf, "dtype")
    is_typed = is_array or isinstance(leaf, bool | int | float | complex)
    return (
        np.shape(leaf),
        jnp.result_type(leaf) if is_typed else type(leaf),
        getattr(leaf, "weak_type", not is_array),
    )


def _hash(self: Any) -> int:
    return hash((type(self), _flatten(self)[1]))


def _repr(self: Any) -> str:
    """Return the call that builds the part, without fields at their default."""
    arguments = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        is_comparable = type(value) is type(field.default) and is_plain(value)
        if value is field.default or (is_comparable and value == field.default):
            continue
        arguments.append(f"{field.name}={value!r}")
    return f"{type(self).__name__}({', '.join(arguments)})"


def is_plain(value: Any) -> bool:
    """Return True for a value without arrays and tracers, which can always be compared."""
    return not any(
        isinstance(leaf, np.ndarray | jax.Array | Tracer)
        for leaf in jax.tree.leaves(value)
    )


# ---- checks -------------------------------------------------------------------------------------------------------
def _check(self: Any) -> None:
    """Check and convert every field, see `as_annotated` and `field`."""
    hints = fields(type(self)).hints
    for each in dataclasses.fields(self):
        value = as_annotated(each.name, getattr(self, each.name), hints[each.name])
        converter = each.metadata.get(_CONVERTER)
        if converter is not None:
            value = converter(value)
        object.__setattr__(self, each.name, value)


def _check_hashable(self: Any) -> None:
    for name in fields(type(self)).static:
        value = getattr(self, name)
        try:
            hash(value)
        except TypeError as error:
            reason = " ".join(str(error).split())[:120]
            is_array = isinstance(value, np.ndarray | jax.Array)
            remedy = "give a tuple, or a part"
            if is_array:
                remedy = "annotate the field as jax.Array"
            raise ValueError(f"{name}={short(value)}: {reason}; {remedy}") from None


# ---- values by name -----------------------------------------------------------------------------------------------
def values_of(given: Any) -> dict[str, Any]:
    """Return dotted name, such as "training.optimizer.learning_rate" -> leaf of a part."""
    return {_dotted(path): leaf for path, leaf in jax.tree.leaves_with_path(given)}


def with_values(given: T, values: Mapping[str, Any]) -> T:
    """Replace leaves of a part by dotted names, for example by tracers or arrays."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: values.get(_dotted(path), leaf), given
    )


def rebuilt(given: T) -> T:
    """Rebuild a part and its inner parts to run their checks, which JAX skips."""
    if not is_part(given):
        return given
    names = [field.name for field in dataclasses.fields(given)]  # type: ignore[arg-type]
    return type(given)(**{name: rebuilt(getattr(given, name)) for name in names})


def several(given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in fields that are annotated as numbers, with their dotted names."""
    for name in fields(type(given)).leaves:
        value = getattr(given, name)
        if is_part(value):
            for inner, leaf in several(value):
                yield f"{name}.{inner}", leaf
            continue
        kinds = [kind for kind, _ in types_of(fields(type(given)).hints[name])]
        are_numbers = float in kinds or dict[str, float] in kinds
        if not are_numbers or any(map(is_array_type, kinds)):
            continue
        for path, leaf in jax.tree.leaves_with_path(value):
            if np.ndim(leaf) > 0:
                yield ".".join(filter(None, (name, _dotted(path)))), leaf


def remedy_of(error: Exception) -> str:
    """Return a remedy, after a semicolon, if Python or NumPy read a traced value; otherwise an empty text."""
    is_read = type(error).__name__.endswith(
        ("ConversionError", "ConcretizationTypeError")
    )
    if not is_read:
        return ""
    return "; use jnp.where in place of `if`, jnp in place of math, np and float(), and int fields for sizes"


def reason_of(error: Exception) -> str:
    """Return an error in one line; where a traced value was read, the first of JAX's lines, and the remedy."""
    reason = str(error)
    remedy = remedy_of(error)
    if remedy:
        reason = reason.partition("\n")[0]
    return (" ".join(reason.split()).rstrip(".") or type(error).__name__) + remedy
