"""Points of a grid: one run for each combination of values, checked before anything is simulated."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict
from typing_extensions import override

from fedjax_srp import methods
from fedjax_srp.base import Clock, FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.driver.prepare import SOURCE
from fedjax_srp.lab.report.repeats import distinguishing_suffix
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.lab.runs.run import OPTIONS_OF_DATA_OBJECTS, Run, from_options
from fedjax_srp.messages import Codec, ErrorFeedback
from fedjax_srp.models import SplitModel
from fedjax_srp.parts.checks import check_choice, check_path, nearest, short
from fedjax_srp.parts.files import read_text
from fedjax_srp.parts.options import Option
from fedjax_srp.parts.part import as_annotated, types_of
from fedjax_srp.results.records import LIMITS, identity

VARIANT = "variant"
# named by their values without the option
_VALUE_ONLY = (VARIANT, "method", "algorithm", "dataset", "data")
_OBJECTS: dict[str, tuple[type, ...]] = {  # options whose values may be objects
    "method": (FederatedAlgorithm, Method),
    "participation": (ParticipationPolicy,),
    "model": (SplitModel,),
    "clock": (Clock,),
    "up": (Codec, ErrorFeedback),
    "down": (Codec,),
    "data": (),
}
_REFUSED = {  # options of `run`, and arguments of `simulate`, that are refused here
    "out": "the grid names the folders of its runs",
    "overwrite": "delete the folder of a run to have it run again",
    "progress": "it is an option of the grid",
    "log": "runs would write to one file; their numbers are in the tables of the grid",
    "start": "call srp.simulate for each start, and save the histories",
    "callback": "call srp.simulate for runs with callbacks, and save the histories",
    "key": "give seed",
    "keep_clients": "give models",
    "checkpoint_dir": "a grid keeps its checkpoints by itself",
    "states_dir": "call simulate with it",
}
_OF_EVERY_RUN = (run_options.FIXED | {"data"}) - {
    "model",
    "participation",
    *run_options.DATA,
}
_NOT_SIMULATED = (  # may differ between equal runs
    *(*LIMITS, "communication", "data_dir"),
    *("chunk_size", "devices", "shard_data"),
    *("checkpoint", "models", "tensorboard", "wandb"),
)
# whose values a copy of a file leaves out, while it keeps the rules for them
_LEFT_OUT_IN_COPIES = ("method", "seed")
_MAX_SHOWN = 10  # values of an axis in a plan
_MAX_NAME_LENGTH = 100  # characters of a point's name in the name of its folder
_MAX_COMBINATIONS = 100_000


# What an effect is of: a rule, with None, or an option in the grid (""), a variant or a rule.
Fact = tuple[str, str | None]


class Spec(NamedTuple):
    """Specification of a grid, with the options of `fedjax-srp run`.

    A rule of `exclude` or `where` applies to runs with all of its values; a list matches
    any of its values.
    """

    options: Mapping[str, Any]  # of every run
    axes: Mapping[str, Any]  # option -> its values, or name -> value
    variants: Mapping[str, Mapping[str, Any]]  # name -> options, one more axis
    exclude: Sequence[Mapping[str, Any]] = ()  # rules of runs that are left out
    where: Sequence[Mapping[str, Any]] = ()  # rules, and options that they `set`
    last: frozenset[Fact] = frozenset()  # options of the layer that was laid last
    # other layers and scales: what has an effect there may be without one here
    others: Sequence[Spec] = ()


class NamedObject(NamedTuple):
    """An object as a value of an option."""

    name: str
    value: Any
    is_user_named: bool

    def __eq__(self, other: object) -> bool:  # also with a name, as in rules of `exclude`
        return self.name == (other.name if isinstance(other, NamedObject) else other)

    def __hash__(self) -> int:
        return hash(self.name)


def unwrapped(value: Any) -> Any:
    """Return the object of a named one, and any other value as it is."""
    return value.value if isinstance(value, NamedObject) else value


class Point(NamedTuple):
    """One run of a grid."""

    name: str  # the values by which it differs from the others
    values: dict[str, Any]  # option -> such a value, including `variant`
    # option that variants set -> its value, None if this run has none
    of_variant: dict[str, Any]
    # those, and what else changes no simulation, of its axes, its variant and the rules that
    # apply to it
    limits: dict[str, Any]
    run: Run
    digest: str  # hexadecimal, equal for equal simulations

    @property
    def id(self) -> str:
        """The first eight digits, which name the run in the files of the grid."""
        return self.digest[:8]

    @property
    def folder(self) -> str:
        """Name of a new run folder."""
        return folder_name(self.name, self.id)


def folder_name(name: str, digits: str) -> str:
    """Return the name of a new folder."""
    plain = re.sub(r"[^A-Za-z0-9.=+-]+", "_", name)
    return f"{plain[:_MAX_NAME_LENGTH].strip('_')}-{digits}"


_TABLES = Spec._fields[:5]
_SHAPES: dict[str, tuple[type, str]] = {
    "exclude": (list, "a list of tables, [[exclude]]"),
    "where": (list, "a list of tables, [[where]]"),
    "out": (str, "a string"),
}


def read(path: str | Path, scale: str | None = None) -> tuple[Spec, dict[str, Any]]:
    """Return the grid of a TOML file at a scale, and its other entries: `out` and the table `slurm`.

    Raises:
        ValueError: no such file, invalid TOML, or an unknown table or scale.
    """
    check_path("file", path)
    called = f"file={str(path)!r}"
    try:
        found = tomllib.loads(read_text(Path(path)))
    except OSError as error:
        raise ValueError(
            f"{called}: {error.strerror}; give a TOML file with [options] and [axes]"
        ) from None
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise ValueError(f"{called}: invalid TOML ({error})") from None
    others = {name: found.pop(name) for name in ("out", "slurm") if name in found}
    for name, value in others.items():
        _check_shape(called, name, value)
    return at_scale(found, scale, called, are_flat=False), others


def at_scale(
    found: Mapping[str, Any], scale: str | None, called: str, are_flat: bool = True
) -> Spec:
    """Return the grid of tables by name, with those of a scale laid over the others.

    Args:
        found: options, axes, variants, exclude and where, and scales: name -> such tables.
        scale: one of the scales; None for none.
        called: begins the errors.
        are_flat: names have dots as texts, not as tables within tables.
    """
    tables = dict(found)
    scales = tables.pop("scales", {})
    _check_shape(called, "scales", scales)
    whole = _spec(tables, called, are_flat)
    laid = {}
    for name, over in scales.items():
        _check_shape(called, f"scales.{name}", over)
        laid[name] = _spec(over, f"{called}: scales.{name}", are_flat)
    if scale is not None and not scales:
        raise ValueError(f"scale={scale!r}: the grid has no scales; leave it out")
    of_scale = {name: overlaid(whole, layer) for name, layer in laid.items()}
    if scale is not None:
        check_choice("scale", scale, [*scales])
    chosen = whole if scale is None else of_scale[scale]
    return chosen._replace(others=[whole, *of_scale.values()])


def _spec(tables: Mapping[str, Any], called: str, are_flat: bool) -> Spec:
    for name, value in tables.items():
        if name not in _TABLES:
            known = (*_TABLES, "scales", "out", "slurm")
            raise ValueError(
                f"{called}: unknown entry {name!r}{nearest(name, known)}; options belong under [options]"
            )
        _check_shape(called, name, value)
    options, axes, variants = (tables.get(name, {}) for name in _TABLES[:3])
    exclude, where = (tables.get(name, []) for name in _TABLES[3:])
    if are_flat:
        return Spec(options, axes, variants, exclude, where)
    variants = {name: _flat(given) for name, given in variants.items()}
    rules = []
    for rule in where:
        if not isinstance(rule, Mapping):
            rules.append(rule)  # refused later
            continue
        given = dict(rule)
        set_by_rule = {"set": _flat(given.pop("set"))} if "set" in given else {}
        rules.append(_flat(given) | set_by_rule)
    return Spec(
        _flat(options), _flat(axes), variants, [_flat(rule) for rule in exclude], rules
    )


def _check_shape(called: str, name: str, value: Any) -> None:
    kind, shape = _SHAPES.get(name, (Mapping, f"a table, [{name}]"))
    if not isinstance(value, kind):
        raise ValueError(f"{called}: {name}={short(value)} must be {shape}")


def overlaid(base: Spec, over: Spec) -> Spec:
    """Lay one grid over another: its options, axes and options of variants replace those of one name.

    Its rules are added.
    """
    variants = dict(base.variants)
    for name, options in over.variants.items():
        of_base = variants.get(name, {})
        if isinstance(options, Mapping) and isinstance(of_base, Mapping):
            options = {**of_base, **options}
        variants[name] = options
    return Spec(
        {**without_names(base.options, over.axes), **over.options},
        {**without_names(base.axes, over.options), **over.axes},
        variants,
        [*base.exclude, *over.exclude],
        [*base.where, *over.where],
        frozenset(_options_of(over)),
        [base, *base.others, *(overlaid(other, over) for other in base.others)],
    )


def _options_of(spec: Spec) -> Iterator[Fact]:
    for option in (*spec.options, *spec.axes):
        yield "", option
    for name, options in spec.variants.items():
        if isinstance(options, Mapping):
            for option in options:
                yield _of_variant(name), option


def _of_variant(name: str) -> str:
    return f"variant {name!r}"


def without_names(table: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a table without the entries of these names."""
    return {name: value for name, value in table.items() if name not in names}


def _flat(table: Any) -> Any:
    """Join the keys of nested tables with dots, since TOML reads unquoted dotted keys as tables."""
    return flatten_dict(table, sep=".") if isinstance(table, dict) else table


class Problems:
    """Collection of the errors of a grid."""

    def __init__(self) -> None:
        self._runs: dict[str, list[str]] = {}

    def add(self, problem: object, run: str = "") -> None:
        """Add an error, of a run or of the whole grid."""
        self._runs.setdefault(str(problem), []).extend([run] if run else [])

    def __bool__(self) -> bool:
        return bool(self._runs)

    def raise_if_any(self) -> None:
        """Raise a ValueError of one line with all errors, each once with its first run and the number of others."""
        lines = []
        for problem, runs in self._runs.items():
            more = f" and {len(runs) - 1} more runs" if len(runs) > 1 else ""
            lines.append(f"{runs[0]}{more}: {problem}" if runs else problem)
        if lines:
            count = f"{len(lines)} problems: " if len(lines) > 1 else ""
            raise ValueError(" ".join(f"grid: {count}{'; '.join(lines)}".split()))


def points(spec: Spec) -> list[Point]:
    """Return the runs of a grid, in the order of its axes.

    Options that a method does not read are left out of its runs, and runs that are then equal are merged.
    """
    problems = Problems()
    last = spec.last
    others = [*spec.others, spec] if VARIANT in spec.axes else spec.others
    spec, chosen = _coerced(spec, problems)
    distinguishing = dict.fromkeys(spec.axes)
    for options in (*spec.variants.values(), *(rule["set"] for rule in spec.where)):
        distinguishing |= dict.fromkeys(options)
    spec = spec._replace(variants={name: spec.variants[name] for name in chosen})
    found: dict[str, list[Point]] = {}
    runs: dict[Any, Run] = {}
    effects = _Effects(spec)
    _check_methods(spec, problems)
    ran: dict[str, set[Any]] = {name: set() for name in _LEFT_OUT_IN_COPIES}
    for values, given, together in _products(spec, effects.had):
        for name in ran:
            ran[name].add(given.get(name))
        try:
            kept = _options_read(given)
            effects.add(kept, together)
            own = itertools.chain(spec.axes, *together.values())
            point = _point(
                {n: v for n, v in values.items() if n in kept or n == VARIANT},
                kept,
                distinguishing,
                {name: kept.get(name) for name in own if name in _NOT_SIMULATED},
                runs,
            )
            found.setdefault(point.digest, []).append(point)
        except ValueError as error:
            problems.add(error, name_of(values))
    if not found and not problems:
        problems.add("exclude leaves out all runs; remove a rule")
    ids = Counter(same[0].id for same in found.values())
    for point, *_ in found.values():
        if ids[point.id] > 1:
            problems.add(
                f"two runs have the id {point.id}, by chance; put them into two grids",
                point.name,
            )
    without = [fact for fact in effects.named if fact not in effects.had]
    if without:
        for other in others:
            elsewhere = _effects_of(other) - (last - other.last)
            without = [fact for fact in without if fact not in elsewhere]
    left_out = _rules_left_out(spec, ran)
    _note_without_effect([fact for fact in without if fact not in left_out], problems)
    problems.raise_if_any()
    for fact in without:
        if fact in left_out:
            warnings.warn(
                f"grid: {fact[0]} matches no run, since none has this {left_out[fact]}",
                stacklevel=4,  # the caller of `grid`
            )
    return _with_unique_names(found.values())


def _check_methods(spec: Spec, problems: Problems) -> None:
    """Add a problem for each rule with a method that is neither registered nor an object of this grid."""
    known = {*methods.names(), *methods.algorithm_names()}
    given = [*spec.axes.get("method", ()), spec.options.get("method")]
    given += [options.get("method") for options in spec.variants.values()]
    given += [rule["set"].get("method") for rule in spec.where]
    for method in given:
        if isinstance(method, NamedObject):
            known.add(method.name)
    for rule in (*spec.where, *spec.exclude):
        for method in rule.get("method", ()):
            if method not in known:
                name = _text(method)
                problems.add(
                    f"{_text_of(rule)}: method={short(name)} is unknown"
                    f"{nearest(name, known)}; fedjax-srp list shows the methods"
                )


def _rules_left_out(spec: Spec, ran: Mapping[str, set[Any]]) -> dict[Fact, str]:
    """Return the rules for methods or seeds that no run has, each with which of the two.

    A copy of a file with fewer methods keeps such rules. Other values may be misspelt.

    Args:
        spec: whose methods in rules are known.
        ran: "method" and "seed" -> the values of all runs.
    """
    left_out = {}
    for rule in (*spec.where, *spec.exclude):
        for name, values in ran.items():
            if rule.get(name) and values.isdisjoint(rule[name]):
                left_out[_text_of(rule), None] = name
    return left_out


class _Effects:
    """Options and rules of a grid, and those that have had an effect: the options are read, the rules match runs."""

    def __init__(self, spec: Spec):
        self.named: dict[Fact, None] = {}
        self.had: set[Fact] = set()
        for rule in (*spec.where, *spec.exclude):
            self.named[_text_of(rule), None] = None
        self._name("", {**spec.options, **spec.axes})

    def add(self, read: Collection[str], together: Mapping[str, Iterable[str]]) -> None:
        """Add a run: the options that it reads, and those that its variant and rules set."""
        self.had.update(("", option) for option in read)
        for source, options in together.items():
            self._name(source, options)
            self.had.update((source, option) for option in options if option in read)

    def _name(self, source: str, options: Iterable[str]) -> None:
        for option in options:
            if option not in _OF_EVERY_RUN:
                self.named[source, option] = None


def _effects_of(spec: Spec) -> set[Fact]:
    """Return what has an effect in a grid with all of its variants; nothing for one with errors.

    It may lack what another layer has.
    """
    try:
        spec, _ = _coerced(spec, Problems())
    except ValueError:
        return set()
    effects = _Effects(spec)
    for _, given, together in _products(spec, effects.had):
        try:
            read = _options_read(given)
        except ValueError:  # such as one without a method
            read = given
        effects.add(read, together)
    return effects.had


def _note_without_effect(facts: Sequence[Fact], problems: Problems) -> None:
    has_failed = bool(problems)  # by which options have not been read
    for source, option in facts:
        if option is None:
            problems.add(
                f"{source} matches no run; correct or remove the rule (it sees values of options, axes and variants, "
                "not defaults)"
            )
            continue
        if has_failed or (source and ("", option) in facts):
            continue
        runs = "its runs" if source else "the grid"
        reason = (
            f"no method of {runs} reads it (one given as an object has its own value)"
        )
        if option in run_options.DATA:
            reason = "has no effect on data given as an object"
        where = f"{source}: " if source else ""
        problems.add(f"{where}{option}: {reason}; remove it")


def _coerced(spec: Spec, problems: Problems) -> tuple[Spec, list[str]]:
    """Return a grid with its values coerced, and the names of its variants that are chosen.

    Raises:
        ValueError: a value of another type, an unknown name, or too many combinations.
    """
    run_options.load(coerce("load", run_options.LOAD, spec.options.get("load", ())))
    return _OptionValues(problems).read(spec)


def _as_list(values: Any) -> Any:
    """Return the values of an axis as a list, cut just above the limit; other types are refused later."""
    if isinstance(values, np.ndarray):  # whose numbers compare with a list one by one
        return values.tolist()
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        return values
    return list(itertools.islice(values, _MAX_COMBINATIONS + 1))


class _Values:
    """Reader of the values of a measurement, whose names and types are free; collects errors."""

    members = "arguments"  # of a table

    def __init__(self, problems: Problems):
        self._problems = problems
        self._note = problems.add
        self._variants: Collection[str] = ()
        self._known: Collection[str] = ()  # names in rules

    def read(self, spec: Spec) -> tuple[Spec, list[str]]:
        """Return the grid with its values read, and the names of its variants that are chosen.

        Raises:
            ValueError: all errors in one line.
        """
        listed = {name: _as_list(each) for name, each in spec.axes.items()}
        chosen = listed.pop(VARIANT, [*spec.variants])
        self._variants = spec.variants
        if VARIANT in spec.axes:
            self._check_variants("axes", chosen)
        count = math.prod(
            len(each) for each in listed.values() if isinstance(each, Sized)
        )
        if count * max(len(spec.variants), 1) > _MAX_COMBINATIONS:
            raise ValueError(
                f"grid: at least {count} combinations, the limit is {_MAX_COMBINATIONS}; make several grids"
            )
        axes = {name: self._axis(name, each) for name, each in listed.items()}
        axes = {name: values for name, values in axes.items() if values}
        options = self._table(spec.options, "")
        variants = {}
        for name, given in spec.variants.items():
            variants[name] = self._table(given, f"{_of_variant(name)}: ")
            for option in sorted(variants[name].keys() & axes):
                self._note(
                    f"{_of_variant(name)}: {option} is also an axis; remove one of the two"
                )
        for option in sorted(spec.options.keys() & axes):
            self._note(f"{option} is both an option and an axis; remove one of the two")
        if not self._known:
            in_axes = [VARIANT] if variants else []
            self._known = {*options, *spec.axes, *in_axes}.union(*variants.values())
        exclude = [self._rule("exclude", given) for given in spec.exclude]
        where = [self._setting(given, axes) for given in spec.where]
        self._problems.raise_if_any()
        return Spec(options, axes, variants, exclude, where), chosen

    def _setting(self, given: Any, axes: Collection[str]) -> dict[str, Any]:
        """Return a rule of `where`: option -> its values, and the options that it sets."""
        if not isinstance(given, Mapping) or not given.get("set"):
            self._note(f"where: {short(given)} must be a table with values and `set`")
            return {}
        options = self._table(given["set"], "where: ")
        for name in options.keys() & axes:
            self._note(f"where: {name} is also an axis; remove one of the two")
        return self._rule("where", without_names(given, ["set"])) | {"set": options}

    def _axis(self, name: str, given: Any) -> list[Any]:
        if isinstance(given, Mapping) and self._takes_names(name):
            given = [NamedObject(str(key), each, True) for key, each in given.items()]
        if not isinstance(given, list) or not given:
            self._note(
                f"axes: {name}={short(given)} must be a list with at least one value"
            )
            return []
        return [self._value(name, each, "axes: ") for each in given]

    def _takes_names(self, name: str) -> bool:
        """Return True if an axis may name its values."""
        return True

    def _table(self, given: Any, where: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            self._note(f"{where}{short(given)} must be a table of {self.members}")
            return {}
        return {name: self._value(name, each, where) for name, each in given.items()}

    def _value(self, name: str, given: Any, where: str) -> Any:
        return given

    def _rule(self, kind: str, given: Any) -> dict[str, Any]:
        """Return a rule as option -> its values."""
        if not isinstance(given, Mapping) or not given:
            self._note(f"{kind}: {short(given)} must be a table of {self.members}")
            return {}
        rule: dict[str, Any] = {}
        for name, wanted in given.items():
            if isinstance(wanted, np.ndarray):
                wanted = wanted.tolist()
            several = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
            if name == VARIANT:
                self._check_variants(kind, several)
            else:
                several = self._any_of(name, wanted, several, f"{kind}: ")
            rule[name] = several
        return rule

    def _any_of(
        self, name: str, wanted: Any, several: list[Any], where: str
    ) -> list[Any]:
        """Return the values of a rule that match: of free types, a list is a value or several."""
        if name not in self._known:
            hint = nearest(str(name), self._known)
            self._note(f"{where}{name!r} is no axis, option or variant{hint}")
        is_list = isinstance(wanted, list | tuple)
        return [wanted, *several] if is_list else several

    def _check_variants(self, kind: str, names: Any) -> None:
        if not isinstance(names, list) or not names:
            self._note(f"{kind}: {VARIANT}={short(names)} must be a list of variants")
            return
        for unknown in names:
            if unknown not in [*self._variants]:
                known = ", ".join(self._variants) or "none"
                hint = nearest(str(unknown), self._variants)
                self._note(
                    f"{kind}: unknown variant {short(unknown)}{hint}; choose from {known}"
                )


class _OptionValues(_Values):
    """Reader of the values of a grid, which are converted to the types of the options of runs."""

    members = "options"

    def __init__(self, problems: Problems):
        super().__init__(problems)
        self._options: dict[str, Option] = {}
        for group in run_options.groups().values():
            self._options |= group
        self._known = self._options

    @override
    def _axis(self, name: str, given: Any) -> list[Any]:
        if name not in self._options.keys() - _REFUSED | _OBJECTS.keys():
            self._value(name, given, "axes: ")
            return []
        values = super()._axis(name, given)
        words = [each for each in values if isinstance(each, str)]
        unnamed = [each for each in values if isinstance(each, NamedObject)]
        unnamed = [each for each in unnamed if not each.is_user_named]
        for i, each in enumerate(values):
            if any(each is other for other in unnamed):
                same_name = [other.value for other in unnamed if other.name == each.name]
                object_name = each.name + distinguishing_suffix(each.value, same_name)
                if object_name in words:
                    object_name = short(each.value)
                values[i] = each._replace(name=object_name)
        if unnamed and len({*map(_text, values)}) < len(values):
            self._note(
                f"axes: {name} has several objects called {short(unnamed[0].value)}; give {{name: object, ...}}"
            )
        return values

    @override
    def _takes_names(self, name: str) -> bool:
        return name in _OBJECTS

    @override
    def _value(self, name: str, given: Any, where: str) -> Any:
        if isinstance(given, NamedObject):
            value = self._value(name, given.value, where)
            return given._replace(value=unwrapped(value))
        if name in _REFUSED:
            self._note(f"{where}{name} is not an option of a grid: {_REFUSED[name]}")
        elif name == "load" and where:
            self._note(f"{where}load belongs under options")
        elif name == "data" or (name in _OBJECTS and not isinstance(given, str)):
            return self._object(name, given, where)
        elif name not in self._options:
            self._note(
                f"{where}{name!r} is not an option of fedjax-srp run{nearest(name, self._options)}"
            )
        else:
            try:
                return coerce(name, self._options[name], given)
            except ValueError as error:
                self._note(f"{where}{error}")
        return given

    def _object(self, name: str, given: Any, where: str) -> Any:
        """Return an object with a name, that of its kind."""
        fits = isinstance(given, _OBJECTS[name])
        kinds = " or ".join(["a name", *(kind.__name__ for kind in _OBJECTS[name])])
        if name == "data":
            fits = all(hasattr(given, each) for each in SOURCE)
            kinds = "data from srp.data.load or the like"
        if fits and not isinstance(given, type):
            called = str(getattr(given, "name", type(given).__name__))
            return NamedObject(called, given, False)
        self._note(f"{where}{name}={short(given)} must be {kinds}")
        return given

    @override
    def _any_of(
        self, name: str, wanted: Any, several: list[Any], where: str
    ) -> list[Any]:
        if name == "data":
            return several
        try:
            return [coerce(name, self._options[name], wanted)]
        except (ValueError, KeyError):
            return [self._value(name, value, where) for value in several]


def _text_of(rule: Mapping[str, Any]) -> str:
    """Return a rule of `where` or `exclude` as a text."""
    kind = "where" if "set" in rule else "exclude"
    words = []
    for name, wanted in without_names(rule, ["set"]).items():
        words.append(f"{name}={' or '.join(map(_text, wanted))}")
    return f"{kind}: {', '.join(words)}"


def coerce(name: str, option: Option, value: Any) -> Any:
    """Convert a value to the type of its option: integers to floats, lists to tuples, a text to a tuple of one."""
    kinds = [kind for kind, _ in types_of(option.type)]
    if (
        int in kinds
        and isinstance(value, int | np.integer)
        and not isinstance(value, bool)
    ):
        return int(value)  # without the limit of int32, which seeds exceed
    if tuple[str, ...] in kinds and isinstance(value, str):
        return (value,)
    return as_annotated(name, value, option.type)


def _products(
    spec: Spec, matching: set[Fact]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Mapping[str, Any]]]]:
    """Yield the axis values, all options, and what sets some together, of each run that is not excluded.

    What sets them: a variant or a rule of `where`, as texts -> options. Rules that match are added to `matching`.
    """
    where = [
        (_text_of(rule), without_names(rule, ["set"]), rule["set"]) for rule in spec.where
    ]
    exclude = [(_text_of(rule), rule) for rule in spec.exclude]
    axes = ({VARIANT: list(spec.variants)} if spec.variants else {}) | dict(spec.axes)
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        of_axes = without_names(values, [VARIANT])
        together: dict[str, Mapping[str, Any]] = {}
        if VARIANT in values:
            name = values[VARIANT]
            together[_of_variant(name)] = spec.variants[name]
        given = dict(spec.options)
        for options in together.values():
            given |= options
        given |= of_axes
        for text, rule, options in where:
            if _applies(rule, given | values):
                given |= options
                together[text] = {**together.get(text, {}), **options}
                matching.add((text, None))
        is_excluded = False
        for text, rule in exclude:
            if _applies(rule, given | values):
                is_excluded = True
                matching.add((text, None))
        if not is_excluded:
            yield values, given, together


def combinations(spec: Spec) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the axis values and all arguments of each case of a measurement, whose names and types are free."""
    problems = Problems()
    is_part = VARIANT in spec.axes
    spec, chosen = _Values(problems).read(spec)
    spec = spec._replace(variants={name: spec.variants[name] for name in chosen})
    matching: set[Fact] = set()
    found = [(values, given) for values, given, _ in _products(spec, matching)]
    if not is_part:
        rules = [(_text_of(rule), None) for rule in spec.exclude]
        _note_without_effect([r for r in rules if r not in matching], problems)
    if not found:
        problems.add("exclude leaves out all cases; remove a rule")
    problems.raise_if_any()
    return found


def _applies(rule: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(values.get(name) in wanted for name, wanted in rule.items())


def _options_read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options without those that the run's method, policy, model and data do not read."""
    if "method" not in given and "algorithm" not in given:
        raise ValueError("method is missing; fedjax-srp list shows the methods")
    plain = _unwrapped(given)
    read = run_options.options_read(plain).keys() | run_options.FIXED | {"data"}
    method = plain.get("method")
    if not isinstance(method, str | None):
        read -= {"model"}
    if isinstance(method, Method):
        read -= {"participation"}
    if "data" in given and "dataset" not in given:
        of_objects = {"validation"}
        if given.get("validation"):
            of_objects = {*OPTIONS_OF_DATA_OBJECTS}
        read -= run_options.DATA.keys() - of_objects
    return {option: value for option, value in given.items() if option in read}


def _unwrapped(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: unwrapped(value) for name, value in given.items()}
    return run_options.with_policy_read(plain)


def _point(
    values: dict[str, Any],
    given: Mapping[str, Any],
    distinguishing: Collection[str],
    limits: dict[str, Any],
    runs: dict[Any, Run],
) -> Point:
    """Make a point. Its id ignores limits and options that change no simulation, but for `limits`.

    Args:
        values: of the axes that the run reads.
        given: the options that the run reads.
        distinguishing: options that are axes or are set by variants or rules, of this point or others.
        limits: see `Point`.
        runs: options but for the seed -> a run that has them; it is added.
    """
    names: dict[str, str] = {}
    but_for_seed = {}
    for name, value in given.items():
        if isinstance(value, NamedObject):
            but_for_seed[name] = id(value.value)
            if value.is_user_named:
                names[name] = value.name
        elif name != "seed":
            but_for_seed[name] = repr(value)
    alike = frozenset(but_for_seed.items())
    if alike in runs:
        run = runs[alike].with_seed(given.get("seed", 0))
    else:
        run = from_options(_unwrapped(given), names)
        runs[alike] = run
    of_variant = {
        option: given.get(option) for option in distinguishing if option not in values
    }
    digest = _digest(run, limits)
    return Point(name_of(values) or run.name, values, of_variant, limits, run, digest)


def _digest(run: Run, limits: Mapping[str, Any]) -> str:
    """Hash what is asked for, and the limits of a point."""
    text = json.dumps([identity(run.record), limits], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def rerun_of(point: Point) -> Point:
    """Return the point without validation: trained on all training data and evaluated on test data.

    Its id ignores limits and the like unless they distinguish runs, see `_point`, so that it can be made longer.
    """
    if point.run.data["validation"] is None:
        raise ValueError(
            f"{point.name}: already judged by test data; tune with validation=0.2 under options"
        )
    run = dataclasses.replace(point.run, data={**point.run.data, "validation": None})
    return point._replace(
        run=run,
        values=without_names(point.values, ["validation"]),
        of_variant=without_names(point.of_variant, ["validation"]),
        digest=_digest(run, point.limits),
    )


def _with_unique_names(found: Collection[Sequence[Point]]) -> list[Point]:
    """Merge equal points and give each a unique name, from shared values first, then from all values, then the id."""
    runs = [_merge(same, join_values=False) for same in found]
    count = Counter(run.name for run in runs)
    for i, same in enumerate(found):
        if count[runs[i].name] > 1:
            runs[i] = _merge(same, join_values=True)
    count = Counter(run.name for run in runs)
    for i, run in enumerate(runs):
        if count[run.name] > 1:
            runs[i] = run._replace(name=f"{run.name} ({run.id})")
    return runs


def _merge(same: Sequence[Point], join_values: bool) -> Point:
    """Merge equal points: values in which they differ are joined, or left out."""
    values = {}
    for name in same[0].values:
        different = [*dict.fromkeys(point.values.get(name) for point in same)]
        if len(different) == 1:
            values[name] = different[0]
        elif join_values:
            values[name] = tuple(different)
    return same[0]._replace(values=values, name=name_of(values) or same[0].run.name)


def name_of(values: Mapping[str, Any]) -> str:
    """Return the name of the run, or case, of these values."""
    words = []
    for option, value in values.items():
        word = _text(value)
        if option not in _VALUE_ONLY:
            word = f"{option}={word}"
        words.append(word)
    return ", ".join(words)


def describe_axes(points: Sequence[Point]) -> str:
    """Return a text with the first values of each axis of the runs."""
    axes: dict[str, dict[str, None]] = {}
    for point in points:
        for name, value in point.values.items():
            axes.setdefault(name, {})[_text(value)] = None
    described = []
    for name, texts in axes.items():
        text = f"{name}: {', '.join([*texts][:_MAX_SHOWN])}"
        if len(texts) > _MAX_SHOWN:
            text += f", ... ({len(texts)} values)"
        described.append(text)
    return "; ".join(described)


def _text(value: Any) -> str:
    if isinstance(value, NamedObject):
        return value.name
    if isinstance(value, tuple):
        return "+".join(map(_text, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)
