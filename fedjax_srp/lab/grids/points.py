"""Points of a grid: one run for each combination of values, checked before anything is simulated."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import (
    Callable,
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
_VALUE_ONLY = (
    VARIANT,
    "method",
    "algorithm",
    "dataset",
    "data",
)  # named by their values without the option
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
}
_NOT_SIMULATED = (  # may differ between equal runs
    *(*LIMITS, "communication", "data_dir"),
    *("chunk_size", "devices", "shard_data"),
    *("checkpoint", "models", "tensorboard", "wandb"),
)
_MAX_NAME_LENGTH = 100  # characters of a point's name in the name of its folder
_MAX_COMBINATIONS = 100_000


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
    is_part: bool = False  # what concerns runs of another scale may be without effect


class NamedObject(NamedTuple):
    """An object as a value of an option."""

    name: str
    value: Any
    is_user_named: bool

    def __eq__(self, other: object) -> bool:  # also with a name, as in rules of `exclude`
        return self.name == (other.name if isinstance(other, NamedObject) else other)

    def __hash__(self) -> int:
        return hash(self.name)


class Point(NamedTuple):
    """One run of a grid."""

    name: str  # the values by which it differs from the others
    values: dict[str, Any]  # option -> such a value, including `variant`
    of_variant: dict[
        str, Any
    ]  # option that variants set -> its value, None if this run has none
    limits: dict[str, Any]  # those, and what else changes no simulation, of its axes, its
    # variant and the rules that apply to it
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


_TABLES = Spec._fields[:-1]
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
    if scale is None:
        return whole
    if not scales:
        raise ValueError(f"scale={scale!r}: the grid has no scales; leave it out")
    check_choice("scale", scale, [*scales])
    return overlaid(whole, laid[scale])


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
        {**_without(base.options, over.axes), **over.options},
        {**_without(base.axes, over.options), **over.axes},
        variants,
        [*base.exclude, *over.exclude],
        [*base.where, *over.where],
        is_part=True,
    )


def _without(table: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
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
    spec = spec._replace(axes={name: _as_list(each) for name, each in spec.axes.items()})
    problems = Problems()
    chosen = spec.axes.get(VARIANT, [*spec.variants])
    if VARIANT in spec.axes:
        _check_variants("axes", chosen, spec.variants, problems.add)
    count = math.prod(
        len(each) for name, each in spec.axes.items() if isinstance(each, Sized)
    ) * max(len(spec.variants), 1)
    if count > _MAX_COMBINATIONS:
        raise ValueError(
            f"grid: at least {count} combinations, the limit is {_MAX_COMBINATIONS}; make several grids"
        )
    run_options.load(coerce("load", run_options.LOAD, spec.options.get("load", ())))
    is_part = spec.is_part or VARIANT in spec.axes
    spec = spec._replace(axes=_without(spec.axes, [VARIANT]))
    spec = _Coercer(problems).spec(spec)
    problems.raise_if_any()
    of_every_run = (run_options.FIXED | {"data"}) - {
        "model",
        "participation",
        *run_options.DATA,
    }
    unread = {*spec.options, *spec.axes} - of_every_run
    set_together = [*spec.variants.values(), *(rule["set"] for rule in spec.where)]
    distinguishing = dict.fromkeys(
        [*spec.axes, *itertools.chain.from_iterable(set_together)]
    )
    spec = spec._replace(variants={name: spec.variants[name] for name in chosen})
    found: dict[str, list[Point]] = {}
    runs: dict[Any, Run] = {}
    rules = [*spec.where, *spec.exclude]
    hits = [0] * len(rules)
    unread_together: dict[Any, set[str]] = {}
    for values, given, together in _products(spec, hits):
        try:
            kept = _options_read(given)
            unread -= kept.keys()
            for source, options in together.items():
                left = unread_together.setdefault(source, {*options} - of_every_run)
                left.difference_update(kept)
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
    if not is_part:
        _check_hits(rules, hits, problems)
    ids = Counter(same[0].id for same in found.values())
    for point, *_ in found.values():
        if ids[point.id] > 1:
            problems.add(
                f"two runs have the id {point.id}, by chance; put them into two grids",
                point.name,
            )
    if not (problems or is_part):
        _note_unread(unread, "", problems)
        for source, options in unread_together.items():
            is_rule = isinstance(source, int)
            called = _text_of(spec.where[source]) if is_rule else f"variant {source!r}"
            _note_unread(options - unread, f"{called}: ", problems)
    problems.raise_if_any()
    return _with_unique_names(found.values())


def _note_unread(options: Collection[str], where: str, problems: Problems) -> None:
    runs = "its runs" if where else "the grid"
    for option in sorted(options):
        reason = (
            f"no method of {runs} reads it (one given as an object has its own value)"
        )
        if option in run_options.DATA:
            reason = "has no effect on data given as an object"
        problems.add(f"{where}{option}: {reason}; remove it")


def _as_list(values: Any) -> Any:
    """Return the values of an axis as a list, cut just above the limit; other types are refused later."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        return values
    return list(itertools.islice(values, _MAX_COMBINATIONS + 1))


class _Coercer:
    """Converts the values of a grid to the types of the options; collects errors."""

    def __init__(self, problems: Problems):
        self._options = {
            name: each
            for group in run_options.groups().values()
            for name, each in group.items()
        }
        self._note = problems.add

    def spec(self, spec: Spec) -> Spec:
        """Return the grid with its values coerced."""
        axes = {
            name: axis
            for name, given in spec.axes.items()
            if (axis := self._axis(name, given))
        }
        variants = {
            name: self._table(given, f"variant {name!r}: ")
            for name, given in spec.variants.items()
        }
        _check_apart(variants, axes, self._note)
        for option in sorted({*spec.options} & {*axes}):
            self._note(f"{option} is both an option and an axis; remove one of the two")
        rules = []
        for given in spec.exclude:
            rules += self._rule("exclude", given, variants)
        settings = []
        for given in spec.where:
            settings += self._setting(given, variants, axes)
        return Spec(self._table(spec.options, ""), axes, variants, rules, settings)

    def _setting(
        self, given: Any, variants: Mapping[str, Any], axes: Collection[str]
    ) -> list[dict[str, Any]]:
        """Return a rule of `where`: option -> its values, and the options that it sets."""
        if not isinstance(given, Mapping) or not given.get("set"):
            self._note(f"where: {short(given)} must be a table with values and `set`")
            return []
        options = self._table(given["set"], "where: ")
        for name in options.keys() & axes:
            self._note(f"where: {name} is also an axis; remove one of the two")
        rules = self._rule("where", _without(given, ["set"]), variants)
        return [rule | {"set": options} for rule in rules]

    def _axis(self, name: str, given: Any) -> list[Any]:
        named = given.values() if isinstance(given, Mapping) and name in _OBJECTS else ()
        listed = given if isinstance(given, list) else list(named)
        if not listed and name not in self._options.keys() - _REFUSED | _OBJECTS.keys():
            self._value(name, given, "axes: ")
        elif not listed:
            self._note(
                f"axes: {name}={short(given)} must be a list with at least one value"
            )
        values = [self._value(name, value, "axes: ") for value in listed]
        if isinstance(given, Mapping):
            objects = [
                each.value if isinstance(each, NamedObject) else each for each in values
            ]
            return [
                NamedObject(str(key), each, True)
                for key, each in zip(given, objects, strict=bool(values))
            ]
        unnamed = [each for each in values if isinstance(each, NamedObject)]
        words = [each for each in values if isinstance(each, str)]
        for i, each in enumerate(values):
            if isinstance(each, NamedObject):
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

    def _table(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            self._note(f"{where}{short(given)} must be a table of options")
            return {}
        return {
            name: self._value(name, of_name, where) for name, of_name in given.items()
        }

    def _value(self, name: str, given: Any, where: str) -> Any:
        if name in _REFUSED:
            self._note(f"{where}{name} is not an option of a grid: {_REFUSED[name]}")
        elif name == "load" and where:
            self._note(f"{where}load belongs under options")
        elif name in _OBJECTS and (name == "data" or not isinstance(given, str)):
            fits = (
                all(hasattr(given, each) for each in SOURCE)
                if name == "data"
                else isinstance(given, _OBJECTS[name])
            )
            if fits and not isinstance(given, type):
                return NamedObject(
                    str(getattr(given, "name", type(given).__name__)), given, False
                )
            kinds = " or ".join(
                ["a name"] * (name != "data") + [kind.__name__ for kind in _OBJECTS[name]]
            )
            self._note(
                f"{where}{name}={short(given)} must be {kinds or 'data from srp.data.load or the like'}"
            )
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

    def _rule(
        self, kind: str, given: Any, variants: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return a rule as option -> its values; none if it is no table."""
        if not isinstance(given, Mapping) or not given:
            self._note(f"{kind}: {short(given)} must be a table of options")
            return []
        rule: dict[str, Any] = {}
        for name, wanted in given.items():
            several = [wanted]
            if isinstance(wanted, list | tuple):
                several = list(wanted)
            rule[name] = several
            if name == VARIANT:
                _check_variants(kind, several, variants, self._note)
            elif name != "data":
                try:
                    rule[name] = [coerce(name, self._options[name], wanted)]
                except (ValueError, KeyError):
                    where = f"{kind}: "
                    rule[name] = [self._value(name, value, where) for value in several]
        return [rule]


def _check_variants(
    kind: str, names: Any, variants: Mapping[str, Any], note: Callable[[str], None]
) -> None:
    if not isinstance(names, list) or not names:
        note(f"{kind}: {VARIANT}={short(names)} must be a list of variants")
        return
    for unknown in names:
        if unknown not in [*variants]:
            known = ", ".join(variants) or "none"
            hint = nearest(str(unknown), variants)
            note(f"{kind}: unknown variant {short(unknown)}{hint}; choose from {known}")


def _check_apart(
    variants: Mapping[str, Mapping[str, Any]],
    axes: Collection[str],
    note: Callable[[str], None],
) -> None:
    for name, given in variants.items():
        for option in sorted({*given} & {*axes}):
            note(f"variant {name!r}: {option} is also an axis; remove one of the two")


def _check_hits(
    rules: Sequence[Mapping[str, Any]], hits: Sequence[int], problems: Problems
) -> None:
    for rule, hit in zip(rules, hits, strict=True):
        if not hit:
            problems.add(
                f"{_text_of(rule)} matches no run; correct or remove the rule (it sees values of options, axes and "
                "variants, not defaults)"
            )


def _text_of(rule: Mapping[str, Any]) -> str:
    """Return a rule of `where` or `exclude` as a text."""
    text = ", ".join(
        f"{name}={' or '.join(map(_text, wanted))}"
        for name, wanted in rule.items()
        if name != "set"
    )
    return f"{'where' if 'set' in rule else 'exclude'}: {text}"


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
    spec: Spec, hits: list[int]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[Any, Mapping[str, Any]]]]:
    """Yield the axis values, all options, and what sets some together, of each run that is not excluded.

    What sets them: name of a variant or number of a rule of `where` -> options. `hits` counts matches per rule.
    """
    axes = ({VARIANT: list(spec.variants)} if spec.variants else {}) | dict(spec.axes)
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        of_axes = _without(values, [VARIANT])
        together: dict[Any, Mapping[str, Any]] = {}
        if VARIANT in values:
            together[values[VARIANT]] = spec.variants[values[VARIANT]]
        given = dict(spec.options)
        for options in together.values():
            given |= options
        given |= of_axes
        for i, rule in enumerate(spec.where):
            if _applies(_without(rule, ["set"]), given | values):
                given |= rule["set"]
                together[i] = rule["set"]
                hits[i] += 1
        is_excluded = False
        for i, rule in enumerate(spec.exclude, len(spec.where)):
            if _applies(rule, given | values):
                is_excluded = True
                hits[i] += 1
        if not is_excluded:
            yield values, given, together


def combinations(spec: Spec) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the axis values and all arguments of each case of a measurement, whose names and types are free."""
    problems = Problems()
    axes: dict[str, list[Any]] = {}
    for name, given in _without(spec.axes, [VARIANT]).items():
        listed = _as_list(given)
        if isinstance(given, Mapping):
            listed = [NamedObject(str(key), each, True) for key, each in given.items()]
        if not isinstance(listed, list) or not listed:
            problems.add(f"axes: {name}={short(given)} must be a list with values")
        elif name in spec.options:
            problems.add(f"{name} is both an option and an axis; remove one of the two")
        else:
            axes[name] = listed
    chosen = _as_list(spec.axes.get(VARIANT, [*spec.variants]))
    if VARIANT in spec.axes:
        _check_variants("axes", chosen, spec.variants, problems.add)
    known = {*spec.options, *spec.axes}
    if spec.variants:
        known.add(VARIANT)
    for name, given in spec.variants.items():
        if isinstance(given, Mapping):
            known |= given.keys()
            _check_apart({name: given}, axes, problems.add)
        else:
            problems.add(f"variant {name!r}: {short(given)} must be a table of arguments")
    for rule in spec.exclude:
        if not isinstance(rule, Mapping) or not rule:
            problems.add(f"exclude: {short(rule)} must be a table of arguments")
            continue
        for name in rule:
            if name not in known:
                hint = nearest(str(name), known)
                problems.add(f"exclude: {name!r} is no axis, option or variant{hint}")
    problems.raise_if_any()
    is_part = VARIANT in spec.axes
    spec = spec._replace(
        axes=axes,
        variants={name: spec.variants[name] for name in chosen},
        exclude=list(map(_any_of, spec.exclude)),
    )
    hits = [0] * len(spec.exclude)
    found = [(values, given) for values, given, _ in _products(spec, hits)]
    if not is_part:
        _check_hits(spec.exclude, hits, problems)
    if not found:
        problems.add("exclude leaves out all cases; remove a rule")
    problems.raise_if_any()
    return found


def _any_of(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule as option -> its values, of free types: a list is a value or several."""
    found = {}
    for name, wanted in rule.items():
        found[name] = [wanted]
        if isinstance(wanted, list | tuple):
            found[name] += wanted
    return found


def _applies(rule: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(values.get(name) in wanted for name, wanted in rule.items())


def _options_read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options without those that the run's method, policy, model and data do not read."""
    if "method" not in given and "algorithm" not in given:
        raise ValueError("method is missing; fedjax-srp list shows the methods")
    unwrapped = _unwrapped(given)
    read, method = (
        run_options.options_read(unwrapped).keys() | run_options.FIXED | {"data"},
        unwrapped.get("method"),
    )
    if not isinstance(method, str | None):
        read -= {"model", "participation"} if isinstance(method, Method) else {"model"}
    if "data" in given and "dataset" not in given:
        read -= run_options.DATA.keys() - (
            {*OPTIONS_OF_DATA_OBJECTS} if given.get("validation") else {"validation"}
        )
    return {option: value for option, value in given.items() if option in read}


def _unwrapped(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        name: value.value if isinstance(value, NamedObject) else value
        for name, value in given.items()
    }
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
    objects = {
        name: value for name, value in given.items() if isinstance(value, NamedObject)
    }
    names = {name: each.name for name, each in objects.items() if each.is_user_named}
    alike = frozenset(
        (name, id(objects[name].value) if name in objects else repr(value))
        for name, value in given.items()
        if name != "seed"
    )
    if alike in runs:
        run = runs[alike].with_seed(given.get("seed", 0))
    else:
        run = runs[alike] = from_options(_unwrapped(given), names)
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
    values, of_variant = (
        {name: value for name, value in given.items() if name != "validation"}
        for given in (point.values, point.of_variant)
    )
    digest = _digest(run, point.limits)
    return point._replace(run=run, values=values, of_variant=of_variant, digest=digest)


def _with_unique_names(found: Collection[Sequence[Point]]) -> list[Point]:
    """Merge equal points and give each a unique name, from shared values first, then from all values, then the id."""
    runs = [_merge(same, join_values=False) for same in found]
    count = Counter(run.name for run in runs)
    runs = [
        _merge(same, join_values=count[run.name] > 1)
        for run, same in zip(runs, found, strict=True)
    ]
    count = Counter(run.name for run in runs)
    return [
        run._replace(name=f"{run.name} ({run.id})") if count[run.name] > 1 else run
        for run in runs
    ]


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
    words = [
        _text(value) if option in _VALUE_ONLY else f"{option}={_text(value)}"
        for option, value in values.items()
    ]
    return ", ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, NamedObject):
        return value.name
    if isinstance(value, tuple):
        return "+".join(map(_text, value))
    return (
        f"{value:g}"
        if isinstance(value, float) and float(f"{value:g}") == value
        else str(value)
    )
