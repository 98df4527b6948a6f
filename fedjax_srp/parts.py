"""Float hyper-parameters as arguments of a program: other values, the same compiled program.

Parts (`FederatedAlgorithm`, `Clock`, `ParticipationPolicy`) are NamedTuples of functions, and functions that are closed
over a number have it compiled in. Where a function is a `jax.tree_util.Partial`, the floats and arrays that it carries
are leaves of the part instead: the engine takes them off (`detach`), compiles without them, and passes them along with
key and data. Clocks of this package are made so; `tunable` makes an algorithm so. Everything else about a part is
compared as Python compares it, functions by identity: parts that are equal share their programs (`interned`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jax.tree_util import Partial

from fedjax_srp._checks import is_number, short
from fedjax_srp.base import Array, FederatedAlgorithm, Phase, PyTree
from fedjax_srp.outside import reads
from fedjax_srp.record import Options, recorded

P = ParamSpec("P")
Part = TypeVar("Part")
Values = Mapping[str, Any]  # of hyper-parameters: numbers, or tracers while a program is traced
Build = Callable[[Values], FederatedAlgorithm]


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function of the algorithm that `build` makes of the values; equal where build and place are."""

    build: Build
    place: tuple[str, ...]  # fields and keys that lead to it
    outside: tuple[Any, ...] = ()  # what `build` read when the algorithm was made

    def of(self, values: Values) -> Callable[..., Any]:
        found: Any = self.build(values)
        for name in self.place:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        return found

    def __call__(self, values: Values, *args: Any) -> Any:
        return self.of(values)(*args)


def tunable(build: Build, values: Values) -> FederatedAlgorithm:
    """An algorithm whose float hyper-parameters are arguments of the compiled program.

    `build` is called with numbers once, and with traced numbers whenever a function is traced: it must make the same
    algorithm for all values but for the numbers in it. Programs are shared between calls with an equal `build`, so make
    that function once, outside a sweep.

    Args:
        build: `values -> FederatedAlgorithm`; no Python `if` on a value.
        values: name -> float, or an array; a whole number is a float too.

    Returns:
        `build(values)`, with functions that carry the values.

    Raises:
        ValueError: what `build` refuses.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> build = lambda values: srp.algorithms.fedavg(model, srp.algorithms.sgd(values["learning_rate"]))
        >>> for rate in (0.01, 0.1):  # compiles once
        ...     algorithm = srp.tunable(build, {"learning_rate": rate})
        ...     history = srp.simulate(algorithm, data, num_rounds=2, key=jax.random.key(0), progress=False)
    """
    whole = {name: float(v) for name, v in values.items() if isinstance(v, numbers.Integral) and is_number(v)}
    values, outside = {**values, **whole}, reads(build)

    def carry(part: Any, place: tuple[str, ...]) -> Any:
        if isinstance(part, FederatedAlgorithm | Phase):
            return type(part)(*(carry(value, (*place, name)) for name, value in part._asdict().items()))
        if isinstance(part, Mapping) and not isinstance(part, Options):
            return {name: carry(value, (*place, name)) for name, value in part.items()}
        return Partial(_Function(build, place, outside), values) if callable(part) else part

    return carry(build(values), ())


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `build` made of a function of a tunable algorithm; any other function as it is."""
    if isinstance(function, Partial) and isinstance(function.func, _Function):
        return function.func.of(*function.args)
    return function


def interned(factory: Callable[P, Part]) -> Callable[P, Part]:
    """Makes a factory return the very same part for equal arguments, by place or by name, defaults given or not.

    Arguments that cannot be hashed make a new part, and so does a factory of one's own that reads something else from
    outside than before: another helper, another number of its module.
    """
    cached = functools.lru_cache(maxsize=256, typed=True)(lambda outside, *args, **kwargs: factory(*args, **kwargs))
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Part:
        try:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return cached(reads(factory), *bound.args, **dict(sorted(bound.kwargs.items())))
        except TypeError:  # an argument that cannot be hashed, or a call that the factory refuses itself
            return factory(*args, **kwargs)

    return make


def own_factory(
    what: str, name: str, factory: Callable[..., Part], makes: type[Part], known: Collection[str], given: int = 0
) -> Callable[..., Part]:
    """The factory of a part of one's own with a name: it records its arguments, and makes one part for equal ones.

    Args:
        what: the name is of, "participation" say.
        name: the name.
        factory: checked here.
        makes: the type of what it returns, checked in every call.
        known: names that are taken.
        given: how many of its first arguments are no options; every other one must have a name, and a default too where
            some are.

    Raises:
        ValueError: a name that is taken or none, a factory that is none, an argument that cannot be an option.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name={short(name)} is no name; give a string")
    if name in known:
        raise ValueError(f"name={name!r} is a {what} of the package; choose another name")
    if not callable(factory) or isinstance(factory, makes):
        raise ValueError(
            f"{short(factory)} is no factory: give the function that makes the {what}, not what it returns"
        )
    called = getattr(factory, "__name__", type(factory).__name__)
    parameters = list(inspect.signature(factory).parameters.values())
    if len(parameters) < given:
        raise ValueError(f"{called}: takes {len(parameters)} arguments, it is called with {given} and its options")
    for parameter in parameters[given:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"{called}: {parameter} cannot be given by name, as options are; give it a name")
        if given and parameter.default is parameter.empty:
            raise ValueError(f"{called}: {parameter.name} has no default, as options of a {what} have; give it one")

    @functools.wraps(factory)
    def make(*args: Any, **options: Any) -> Part:
        part = factory(*args, **options)
        if not isinstance(part, makes):
            raise ValueError(f"{called}: returned {short(part)}, not a {makes.__name__}")
        return part

    return interned(recorded(make))


class Static(NamedTuple):
    """Parts without their values: hashable, equal where the parts differ in values alone."""

    structure: Any  # PyTreeDef
    leaves: tuple[Any, ...]  # None in the places of values


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, float | np.floating | np.ndarray | jax.Array)


def detach(parts: PyTree) -> tuple[Static, list[Any]]:
    """Takes the floats and arrays off parts: what is left, and the values."""
    leaves, structure = jax.tree.flatten(parts)
    values = [leaf for leaf in leaves if _is_value(leaf)]
    return Static(structure, tuple(None if _is_value(leaf) else leaf for leaf in leaves)), values


def attach(static: Static, values: list[Any]) -> PyTree:
    """Undoes `detach`, with these values."""
    remaining = iter(values)
    leaves = [next(remaining) if leaf is None else leaf for leaf in static.leaves]
    return jax.tree.unflatten(static.structure, leaves)


def with_values(algorithm: FederatedAlgorithm, values: Mapping[str, Array]) -> FederatedAlgorithm:
    """A tunable algorithm with some of its values replaced, say by an axis of them.

    Raises:
        ValueError: the algorithm has no value of that name.
    """
    known = values_of(algorithm)
    if unknown := sorted(values.keys() - known.keys()):
        has = ", ".join(known) or "none; make it with srp.methods.get or srp.tunable"
        raise ValueError(f"values has {unknown[0]!r}, which is no float of algorithm {algorithm.name!r}; it has {has}")

    def change(path: tuple[Any, ...], leaf: Any) -> Any:
        return values[_name(path)] if _name(path) in values and _is_value(leaf) else leaf

    evaluations = {name: jax.tree_util.tree_map_with_path(change, f) for name, f in algorithm.evaluations.items()}
    changed = jax.tree_util.tree_map_with_path(change, algorithm._replace(evaluations={}))
    options = None if algorithm.options is None else Options({**algorithm.options, **values})
    return changed._replace(evaluations=evaluations, options=options)


def check_values(algorithm: Any, values: Mapping[str, Any]) -> None:
    """Lets whoever builds a tunable algorithm judge the values of every run; a program gets them traced, unseen.

    Args:
        algorithm: or a `Method`; what is not tunable has nothing to judge.
        values: name -> one number a run.

    Raises:
        ValueError: the first run whose values are refused, and why.
    """
    build, known = _built(algorithm)
    if build is None or not values.keys() <= known.keys():  # `with_values` says what is unknown
        return
    for place, of_run in enumerate(zip(*values.values(), strict=True)):
        given = {name: float(value) for name, value in zip(values, of_run, strict=True)}
        try:
            build({**known, **given})
        except ValueError as error:
            raise ValueError(f"values of run {place}: {error}") from error


def are_named(part: Any, names: Collection[str]) -> list[bool]:
    """Which of the values that `detach` takes off a part have one of these names, as `with_values` finds them."""
    return [_name(path) in names for path, leaf in jax.tree.leaves_with_path(part) if _is_value(leaf)]


def _name(path: tuple[Any, ...]) -> str:
    """Of a leaf in a dict; "" elsewhere."""
    return str(getattr(path[-1], "key", "")) if path else ""


def values_of(algorithm: FederatedAlgorithm) -> dict[str, Any]:
    """The values of a tunable algorithm by name; {} for any other."""
    return _built(algorithm)[1]


def _built(algorithm: Any) -> tuple[Build | None, dict[str, Any]]:
    """What a tunable algorithm is built by, and of which values; None and {} for any other."""
    for leaf in jax.tree.leaves(algorithm, is_leaf=lambda node: isinstance(node, Partial)):
        function = leaf.func if isinstance(leaf, Partial) else None
        if isinstance(function, _Function):
            return function.build, dict(leaf.args[0])
    return None, {}
