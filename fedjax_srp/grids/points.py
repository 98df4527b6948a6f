"""The points of a grid: products of options of `fedjax-srp run`, checked before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import re
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from fedjax_srp import methods
from fedjax_srp._checks import nearest, short
from fedjax_srp.commands import run as run_command
from fedjax_srp.commands import run_options
from fedjax_srp.commands.options import REQUIRED, Option

VARIANT = "variant"
_BARE = (VARIANT, "method", "algorithm", "dataset")  # in names, their values alone
_OF_THE_GRID = {  # options of `run` that a grid sets
    "out": "the grid names the folders of its runs",
    "overwrite": "delete the folder of a run to have it run again",
    "progress": "it is an option of the grid",
    "log": "runs would write to one file; their numbers are in the tables of the grid",
    "tensorboard": "runs would write to one folder",
}
_LONG = 100  # letters of a name in a folder's
_PRODUCTS = 100_000


class Spec(NamedTuple):
    """What a grid is made of, in the words of `fedjax-srp run`."""

    options: Mapping[str, Any]  # of every run
    axes: Mapping[str, Sequence[Any]]  # option -> its values
    variants: Mapping[str, Mapping[str, Any]]  # name -> options, one more axis
    exclude: Sequence[Mapping[str, Any]]  # runs with all of these values are left out; a list stands for any of them


class Point(NamedTuple):
    """One run of a grid.

    Attributes:
        name: the values by which it differs from the others.
        values: these, by option; `variant` among them.
        of_variant: what stands in variants and is no axis, by option, None where the run is not given it.
        arguments: every option of `run` with its value, but for the folder.
        record: what its run folder says of them.
        floats: the options that are arguments of its program.
        id: eight hexadecimal digits, equal where the simulations are.
    """

    name: str
    values: dict[str, Any]
    of_variant: dict[str, Any]
    arguments: dict[str, Any]
    record: dict[str, Any]
    floats: dict[str, float]
    id: str

    @property
    def folder(self) -> str:
        """What its run folder is called, if it is new."""
        return f"{re.sub(r'[^A-Za-z0-9.=+-]+', '_', self.name)[:_LONG].strip('_')}-{self.id}"


def read(path: str | Path) -> tuple[Spec, dict[str, Any]]:
    """The grid of a TOML file, and what else stands in it: `out`, and the table `slurm`.

    Raises:
        ValueError: no such file, no TOML, or a table that a grid does not have.
    """
    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"file={str(path)!r}: {error.strerror}; give a TOML file with [options] and [axes]") from None
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError
        raise ValueError(f"file={str(path)!r}: no TOML ({error}); mend it there") from None
    known = (*Spec._fields, "out", "slurm")
    for name, value in found.items():
        if name not in known:
            hint = "; options stand under [options]" if name not in Spec._fields else ""
            raise ValueError(f"file={str(path)!r}: {name!r} is no part of a grid{nearest(name, known)}{hint}")
        wanted = {"exclude": list, "out": str}.get(name, dict)
        if not isinstance(value, wanted):
            shape = {"exclude": "a list of tables, [[exclude]]", "out": "a text"}.get(name, f"a table, [{name}]")
            raise ValueError(f"file={str(path)!r}: {name}={short(value)} must be {shape}")
    options, axes, variants, exclude = (found.pop(name, [] if name == "exclude" else {}) for name in Spec._fields)
    variants = {name: _flat(given) for name, given in variants.items()}
    return Spec(_flat(options), _flat(axes), variants, [_flat(rule) for rule in exclude]), found


def _flat(table: Any, before: str = "") -> Any:
    """A table whose keys have dots, quoted or not: TOML makes tables of the latter, and no option takes one."""
    if not isinstance(table, Mapping):
        return table
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def points(spec: Spec) -> list[Point]:
    """Every run of a grid, in the order of its axes.

    An option that a method does not read is left out of its runs; runs that become equal by that are one.

    Raises:
        ValueError: all that is wrong with the grid, in one line.
    """
    for name in ("options", "axes", "variants"):
        if not isinstance(getattr(spec, name), Mapping):
            raise ValueError(f"{name}={short(getattr(spec, name))} must be a dict of options by name")
    loaded = spec.options.get("load", ())
    run_options.load([loaded] if isinstance(loaded, str) else list(loaded))
    options = {o.name: o for group in run_options.groups().values() for o in group}
    of_methods = {*run_options.owned(), *run_command.OWN}
    problems = Problems()
    spec = _coerced(spec, options, problems)
    if not problems:
        unread = dict.fromkeys({*spec.options, *spec.axes} & of_methods)
        found: dict[str, list[Point]] = {}
        told_apart = {*spec.axes, *itertools.chain.from_iterable(spec.variants.values())}
        hits = [0] * len(spec.exclude)
        for values, given in _products(spec, hits):
            name = _name(values)
            try:
                kept = _read_by_the_method(given, of_methods)
                for option in kept:
                    unread.pop(option, None)
                _check(kept, options)
                of_axes = {n: v for n, v in values.items() if n in kept or n == VARIANT}
                point = _point(of_axes, kept, options, told_apart)
                found.setdefault(point.id, []).append(point)
            except ValueError as error:
                problems.add(error, name)
        if not found and not problems:
            problems.add("no runs are left, exclude leaves out all of them; leave out a rule")
        for rule, count in zip(spec.exclude, hits, strict=True):
            if not count:
                words = ", ".join(f"{name}={' or '.join(map(_text, wanted))}" for name, wanted in rule.items())
                problems.add(
                    f"exclude: {words} leaves out no run; mend the rule or leave it out (it sees what options, axes "
                    "and variants say, no defaults)"
                )
        for option in unread if not problems else ():
            problems.add(f"{option}: no method of the grid reads it; leave it out")
        if not problems:
            return _named(found.values())
    raise problems.error()


class Problems:
    """All that is wrong with a grid."""

    def __init__(self) -> None:
        self._runs: dict[str, list[str]] = {}

    def add(self, what: object, run: str = "") -> None:
        """Notes something, of a run or of all."""
        self._runs.setdefault(str(what), []).extend([run] if run else [])

    def __bool__(self) -> bool:
        return bool(self._runs)

    def error(self) -> ValueError:
        """All of it in one line; what several runs have in common, once."""
        told = []
        for what, runs in self._runs.items():
            more = f" and {len(runs) - 1} more runs" if len(runs) > 1 else ""
            told.append(f"{runs[0]}{more}: {what}" if runs else what)
        count = f"{len(told)} things are wrong: " if len(told) > 1 else ""
        return ValueError(f"grid: {count}{'; '.join(told)}")


def _check(given: Mapping[str, Any], options: Mapping[str, Option]) -> None:
    """As `fedjax-srp run` checks its words."""
    defaults = {name: option.default for name, option in options.items()}
    if "dataset" not in given:
        raise ValueError("dataset is missing; fedjax-srp list shows data sets")
    run_command.check_given({**defaults, **given}, set(given))


def _coerced(spec: Spec, options: Mapping[str, Option], problems: Problems) -> Spec:
    """The values as the options take them; notes what is wrong."""

    def value(name: str, given: Any, where: str) -> Any:
        if name in _OF_THE_GRID:
            problems.add(f"{where}{name} is no option of a grid: {_OF_THE_GRID[name]}")
        elif name not in options:
            problems.add(f"{where}{name!r} is no option of fedjax-srp run{nearest(name, options)}")
        else:
            try:
                return coerce(options[name], given)
            except ValueError as error:
                problems.add(f"{where}{error}")
        return given

    def table(given: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            problems.add(f"{where}{short(given)} must be a table of options")
            return {}
        return {name: value(name, of_name, where) for name, of_name in given.items()}

    axes: dict[str, list[Any]] = {}
    for name, given in spec.axes.items():
        if isinstance(given, str) or not isinstance(given, Iterable) or not (listed := list(given)):
            problems.add(f"axes: {name}={short(given)} must be a list with a value at least")
            continue
        if name == "load":
            problems.add("axes: load belongs under options")
        axes[name] = [value(name, item, "axes: ") for item in listed]
    variants = {name: table(given, f"variant {name!r}: ") for name, given in spec.variants.items()}
    for name, given in variants.items():
        for option in {*given} & {*axes}:
            problems.add(f"variant {name!r}: {option} is an axis already; leave it out of one of them")
    for option in sorted({*spec.options} & {*axes}):
        problems.add(f"{option} stands under options and is an axis; leave one of them out")
    exclude = []
    for given in spec.exclude:
        if not isinstance(given, Mapping) or not given:
            problems.add(f"exclude: {short(given)} must be a table of options")
            continue
        rule: dict[str, list[Any]] = {}
        for name, wanted in given.items():
            if name == VARIANT:
                rule[name] = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
                for unknown in (v for v in rule[name] if v not in variants):
                    problems.add(f"exclude: no variant {short(unknown)}{nearest(str(unknown), variants)}")
            else:
                rule[name] = _any_of(name, wanted, options, lambda n, v: value(n, v, "exclude: "))
        exclude.append(rule)
    return Spec(table(spec.options, ""), axes, variants, exclude)


def _any_of(name: str, wanted: Any, options: Mapping[str, Option], value: Any) -> list[Any]:
    """The values that a rule of `exclude` means: one, or each of a list."""
    if isinstance(wanted, list | tuple) and name in options:
        try:
            return [coerce(options[name], wanted)]
        except ValueError:
            return [value(name, item) for item in wanted]
    return [value(name, wanted)]


def coerce(option: Option, value: Any) -> Any:
    """A value as `run` takes it: whole numbers become floats, lists tuples, a word several.

    Raises:
        ValueError: a value of another type.
    """
    if isinstance(value, np.generic):
        value = value.item()
    union = typing.get_origin(option.type) in (Union, types.UnionType)
    kinds = typing.get_args(option.type) if union else (option.type,)
    for kind in sorted(kinds, key=lambda kind: kind is float):  # a whole number stays one where it may
        with_type = _as(kind, value)
        if with_type is not None or (value is None and kind is types.NoneType):
            return with_type
    words = " or ".join(_word(kind) for kind in kinds if kind is not types.NoneType)
    raise ValueError(f"{option.name}={short(value)} must be {words}")


def _as(kind: Any, value: Any) -> Any:
    """The value as of this type, None where it is not."""
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else None
    if typing.get_origin(kind) is tuple:
        item, listed = typing.get_args(kind)[0], value if isinstance(value, list | tuple) else None
        if item is str and isinstance(value, str):
            listed = [value]
        items = None if listed is None else tuple(_as(item, v) for v in listed)
        return None if items is None or None in items else items
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is kind else None


def _word(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_word(typing.get_args(kind)[0])}"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[kind]


def _products(spec: Spec, hits: list[int]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(values of the axes, all options that are given) of each run that is not excluded; `hits` counts, a rule each."""
    axes = ({VARIANT: list(spec.variants)} if spec.variants else {}) | dict(spec.axes)
    if (count := int(np.prod([len(values) for values in axes.values()], dtype=float))) > _PRODUCTS:
        raise ValueError(f"grid: {count} products of values, more than {_PRODUCTS}; make several grids")
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        of_variant = spec.variants[values[VARIANT]] if VARIANT in values else {}
        given = {**spec.options, **of_variant, **{n: v for n, v in values.items() if n != VARIANT}}
        all_values = {**given, **values}
        hit = [all(all_values.get(name) in wanted for name, wanted in rule.items()) for rule in spec.exclude]
        hits[:] = map(operator.add, hits, hit)
        if not any(hit):
            yield values, given


def _read_by_the_method(given: Mapping[str, Any], of_methods: set[str]) -> dict[str, Any]:
    """What is given, without the options of other methods, policies and models."""
    name = given.get("method") or given.get("algorithm")
    if name is None:
        raise ValueError("method is missing; fedjax-srp list shows methods")
    if name not in (*methods.names(), *methods.algorithm_names()):
        raise ValueError(f"unknown method {name!r}{nearest(name, methods.names())}; fedjax-srp list shows methods")
    read = {*run_options.read_by(name, given.get("participation"), given.get("model", "mlp")), *run_command.OWN}
    return {option: value for option, value in given.items() if option not in of_methods or option in read}


def _point(
    values: dict[str, Any], given: Mapping[str, Any], options: Mapping[str, Option], told_apart: set[str]
) -> Point:
    """A run. Its limits, and what changes no simulation, may change, unless the grid tells runs apart by them.

    Args:
        values: of the axes that it reads.
        given: the options that it reads.
        options: by name.
        told_apart: the options that are axes or stand in variants.
    """
    arguments = {n: o.default for n, o in options.items() if o.default is not REQUIRED and n != "out"} | dict(given)
    arguments |= {"out": None, "progress": False}
    record = run_command.record(arguments)
    may_change = {*run_command.LIMITS, *run_command.ASIDE} - told_apart
    fixed = {name: value for name, value in record.items() if name not in may_change}
    name = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:8]
    of_variant = {option: given.get(option) for option in options if option in told_apart - values.keys()}
    floats = run_command.floats(arguments)
    return Point(_name(values) or str(record["method"]), values, of_variant, arguments, record, floats, name)


def _named(found: Iterable[Sequence[Point]]) -> list[Point]:
    """Each run once, under a name of its own: by the values that all points with it share, or by those of any."""
    found = [*found]
    runs = [_merged(same, any_of=False) for same in found]
    several = _repeated(runs)
    runs = [_merged(same, any_of=run.name in several) for run, same in zip(runs, found, strict=True)]
    several = _repeated(runs)
    return [run._replace(name=f"{run.name} ({run.id})") if run.name in several else run for run in runs]


def _repeated(runs: Iterable[Point]) -> set[str]:
    return {name for name, count in Counter(run.name for run in runs).items() if count > 1}


def _merged(same: Sequence[Point], any_of: bool) -> Point:
    """The same run several times: a value that they do not share is left out, or becomes all of theirs (`any_of`)."""
    values = {}
    for name in same[0].values:
        different = [*dict.fromkeys(point.values.get(name) for point in same)]
        if len(different) == 1:
            values[name] = different[0]
        elif any_of:
            values[name] = tuple(different)
    return same[0]._replace(values=values, name=_name(values) or str(same[0].record["method"]))


def _name(values: Mapping[str, Any]) -> str:
    words = [_text(value) if option in _BARE else f"{option}={_text(value)}" for option, value in values.items()]
    return ", ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
