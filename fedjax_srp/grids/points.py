"""Points of a grid: every combination of its values, each a run, checked before anything is simulated."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp._checks import nearest, short
from fedjax_srp.base import Clock, FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.engine.prepare import SOURCE
from fedjax_srp.models import SplitModel
from fedjax_srp.options import Option
from fedjax_srp.parts import as_annotated, members
from fedjax_srp.report.repeats import told_apart
from fedjax_srp.runs import words
from fedjax_srp.runs.run import ASIDE, LIMITS, OF_OBJECTS, Run, from_words, read_by

VARIANT = "variant"
_BARE = (VARIANT, "method", "algorithm", "dataset", "data")  # in names, their values alone
_OBJECTS: dict[str, tuple[type, ...]] = {  # options whose values may be objects
    "method": (FederatedAlgorithm, Method),
    "participation": (ParticipationPolicy,),
    "model": (SplitModel,),
    "clock": (Clock,),
    "data": (),
}
_OF_THE_GRID = {  # options of `run` that a grid sets
    "out": "the grid names the folders of its runs",
    "overwrite": "delete the folder of a run to have it run again",
    "progress": "it is an option of the grid",
    "log": "runs would write to one file; their numbers are in the tables of the grid",
}
_LONG = 100  # letters of a name in a folder's
_MOST = 100_000  # combinations


class Spec(NamedTuple):
    """A grid as it is written, in the words of `fedjax-srp run`."""

    options: Mapping[str, Any]  # of every run
    axes: Mapping[str, Any]  # option -> its values, or name -> value
    variants: Mapping[str, Mapping[str, Any]]  # name -> options, one more axis
    exclude: Sequence[Mapping[str, Any]]  # runs with all of these values are left out; a list stands for any of them


class Own(NamedTuple):
    """An object on an axis."""

    name: str
    value: Any
    is_named: bool  # by the user

    def __eq__(self, other: object) -> bool:  # a rule of `exclude` has the name
        return self.name == (other.name if isinstance(other, Own) else other)

    def __hash__(self) -> int:
        return hash(self.name)


class Point(NamedTuple):
    """One run of a grid."""

    name: str  # the values by which it differs from the others
    values: dict[str, Any]  # these, by option; `variant` among them
    of_variant: dict[str, Any]  # what stands in variants and is no axis, by option, None where the run has none
    run: Run
    id: str  # eight hexadecimal digits, equal where the simulations are

    @property
    def folder(self) -> str:
        """The name of its run folder, if that is new."""
        return f"{re.sub(r'[^A-Za-z0-9.=+-]+', '_', self.name)[:_LONG].strip('_')}-{self.id}"


def read(path: str | Path) -> tuple[Spec, dict[str, Any]]:
    """Return the grid of a TOML file, and what else stands in it: `out`, and the table `slurm`.

    Raises:
        ValueError: no such file, no TOML, or a table that a grid does not have.
    """
    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"file={str(path)!r}: {error.strerror}; give a TOML file with [options] and [axes]") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError
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


class Problems:
    """All that is wrong with a grid."""

    def __init__(self) -> None:
        self._runs: dict[str, list[str]] = {}

    def add(self, what: object, run: str = "") -> None:
        """Note something, of a run or of all."""
        self._runs.setdefault(str(what), []).extend([run] if run else [])

    def __bool__(self) -> bool:
        return bool(self._runs)

    def refuse(self) -> None:
        """Raise a ValueError of one line if something is wrong; what several runs have in common stands once."""
        told = []
        for what, runs in self._runs.items():
            more = f" and {len(runs) - 1} more runs" if len(runs) > 1 else ""
            told.append(f"{runs[0]}{more}: {what}" if runs else what)
        if told:
            count = f"{len(told)} things are wrong: " if len(told) > 1 else ""
            raise ValueError(f"grid: {count}{'; '.join(told)}")


def points(spec: Spec) -> list[Point]:
    """Return every run of a grid, in the order of its axes.

    An option that a method does not read is left out of its runs; runs that become equal by that are one.
    """
    spec = spec._replace(axes={name: _listed(each) for name, each in spec.axes.items()})
    count = math.prod(len(each) for each in spec.axes.values() if isinstance(each, Sized)) * max(len(spec.variants), 1)
    if count > _MOST:
        raise ValueError(f"grid: at least {count} products of values, more than {_MOST}; make several grids")
    loaded = spec.options.get("load", ())
    words.load([loaded] if isinstance(loaded, str) else list(loaded))
    problems = Problems()
    spec = _Coerced(problems).spec(spec)
    problems.refuse()
    unread = {*spec.options, *spec.axes} - ((words.FIXED | {"data"}) - {"model", "participation"})
    told_apart = dict.fromkeys([*spec.axes, *itertools.chain.from_iterable(spec.variants.values())])
    found: dict[str, list[Point]] = {}
    hits = [0] * len(spec.exclude)
    for values, given in _products(spec, hits):
        try:
            kept = _read_by_the_method(given)
            unread -= kept.keys()
            point = _point({n: v for n, v in values.items() if n in kept or n == VARIANT}, kept, told_apart)
            found.setdefault(point.id, []).append(point)
        except ValueError as error:
            problems.add(error, _name(values))
    if not found and not problems:
        problems.add("no runs are left, exclude leaves out all of them; leave out a rule")
    for rule, hit in zip(spec.exclude, hits, strict=True):
        if not hit:
            told = ", ".join(f"{name}={' or '.join(map(_text, wanted))}" for name, wanted in rule.items())
            problems.add(
                f"exclude: {told} leaves out no run; mend the rule or leave it out (it sees what options, axes and "
                "variants say, no defaults)"
            )
    for option in sorted(unread) if not problems else ():
        problems.add(f"{option}: no method of the grid reads it; leave it out")
    problems.refuse()
    return _named(found.values())


def _listed(values: Any) -> Any:
    """The values of an axis as a list, of endless ones as many as are too many; what is none stays for an error."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        return values
    return list(itertools.islice(values, _MOST + 1))


class _Coerced:
    """A grid with values as the options take them; notes what is wrong."""

    def __init__(self, problems: Problems):
        self._options = {name: each for group in words.groups().values() for name, each in group.items()}
        self._note = problems.add

    def spec(self, spec: Spec) -> Spec:
        """Return the grid with its values coerced."""
        axes = {name: axis for name, given in spec.axes.items() if (axis := self._axis(name, given))}
        variants = {name: self._table(given, f"variant {name!r}: ") for name, given in spec.variants.items()}
        if "load" in axes:
            self._note("axes: load belongs under options")
        for name, given in variants.items():
            for option in {*given} & {*axes}:
                self._note(f"variant {name!r}: {option} is an axis already; leave it out of one of them")
        for option in sorted({*spec.options} & {*axes}):
            self._note(f"{option} stands under options and is an axis; leave one of them out")
        rules = [rule for given in spec.exclude if (rule := self._rule(given, variants))]
        return Spec(self._table(spec.options, ""), axes, variants, rules)

    def _axis(self, name: str, given: Any) -> list[Any]:
        named = given.values() if isinstance(given, Mapping) and name in _OBJECTS else ()
        listed = given if isinstance(given, list) else list(named)
        if not listed:
            self._note(f"axes: {name}={short(given)} must be a list with a value at least")
        values = [self._value(name, value, "axes: ") for value in listed]
        if isinstance(given, Mapping):
            own = zip(given, values, strict=bool(values))
            return [Own(str(called), each.value if isinstance(each, Own) else each, True) for called, each in own]
        bare = [each for each in values if isinstance(each, Own)]
        for place, each in enumerate(values):
            if isinstance(each, Own):
                alike = [other.value for other in bare if other.name == each.name]
                values[place] = each._replace(name=each.name + told_apart(each.value, alike))
        if bare and len({*values}) < len(values):
            self._note(f"axes: {name} has several objects called {short(bare[0].value)}; give {{name: object, ...}}")
        return values

    def _table(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            self._note(f"{where}{short(given)} must be a table of options")
            return {}
        return {name: self._value(name, of_name, where) for name, of_name in given.items()}

    def _value(self, name: str, given: Any, where: str) -> Any:
        if name in _OF_THE_GRID:
            self._note(f"{where}{name} is no option of a grid: {_OF_THE_GRID[name]}")
        elif name in _OBJECTS and (name == "data" or not isinstance(given, str)):
            fits = all(hasattr(given, each) for each in SOURCE) if name == "data" else isinstance(given, _OBJECTS[name])
            if not fits or isinstance(given, type):
                kinds = " or ".join(["a name"] * (name != "data") + [kind.__name__ for kind in _OBJECTS[name]])
                self._note(f"{where}{name}={short(given)} must be {kinds or 'data of one that was loaded or made'}")
            return Own(str(getattr(given, "name", type(given).__name__)), given, False)
        elif name not in self._options:
            self._note(f"{where}{name!r} is no option of fedjax-srp run{nearest(name, self._options)}")
        else:
            try:
                return coerce(name, self._options[name], given)
            except ValueError as error:
                self._note(f"{where}{error}")
        return given

    def _rule(self, given: Any, variants: Mapping[str, Any]) -> dict[str, list[Any]]:
        """A rule of `exclude`: option -> the values that it means, one, or each of a list."""
        if not isinstance(given, Mapping) or not given:
            self._note(f"exclude: {short(given)} must be a table of options")
            return {}
        rule: dict[str, list[Any]] = {}
        for name, wanted in given.items():
            several = rule[name] = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
            if name == VARIANT:
                for unknown in (value for value in several if value not in variants):
                    self._note(f"exclude: no variant {short(unknown)}{nearest(str(unknown), variants)}")
            elif name != "data":
                try:
                    rule[name] = [coerce(name, self._options[name], wanted)]
                except (ValueError, KeyError):
                    rule[name] = [self._value(name, value, "exclude: ") for value in several]
        return rule


def coerce(name: str, option: Option, value: Any) -> Any:
    """Return a value as `run` takes it: whole numbers become floats, lists tuples, a text several where it may."""
    kinds = [kind for kind, _ in members(option.type)]
    if int in kinds and isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)  # seeds are larger than what enters a program
    if tuple[str, ...] in kinds and isinstance(value, str):
        return (value,)
    return as_annotated(name, value, option.type)


def _products(spec: Spec, hits: list[int]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(values of the axes, all options that are given) of each run that is not excluded; `hits` counts, a rule each."""
    axes = ({VARIANT: list(spec.variants)} if spec.variants else {}) | dict(spec.axes)
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        of_variant = spec.variants[values[VARIANT]] if VARIANT in values else {}
        given = {**spec.options, **of_variant, **{n: v for n, v in values.items() if n != VARIANT}}
        all_values = {**given, **values}
        applies = [all(all_values.get(name) in wanted for name, wanted in rule.items()) for rule in spec.exclude]
        for place, is_hit in enumerate(applies):
            hits[place] += is_hit
        if not any(applies):
            yield values, given


def _read_by_the_method(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, without the options of other methods, policies, models and data."""
    if "method" not in given and "algorithm" not in given:
        raise ValueError("method is missing; fedjax-srp list shows methods")
    read, method = read_by(_plain(given)).keys() | words.FIXED | {"data"}, given.get("method")
    if isinstance(method, Own) and not isinstance(method.value, str):
        read -= {"model", "participation"} if isinstance(method.value, Method) else {"model"}
    if "data" in given and "dataset" not in given:
        read -= words.DATA.keys() - {*OF_OBJECTS}
    return {option: value for option, value in given.items() if option in read}


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Own) else value for name, value in given.items()}


def _point(values: dict[str, Any], given: Mapping[str, Any], told_apart: Collection[str]) -> Point:
    """A run. Its limits, and what changes no simulation, may change, unless the grid tells runs apart by them.

    Args:
        values: of the axes that it reads.
        given: the options that it reads.
        told_apart: the options that are axes or stand in variants.
    """
    names = {name: value.name for name, value in given.items() if isinstance(value, Own) and value.is_named}
    run = from_words(_plain(given), names)
    of_variant = {option: given.get(option) for option in told_apart if option not in values}
    identity = _identity(run, {*LIMITS, *ASIDE}.difference(told_apart))
    return Point(_name(values) or str(run.record["method"]), values, of_variant, run, identity)


def _identity(run: Run, may_change: Collection[str]) -> str:
    fixed = {name: value for name, value in run.record.items() if name not in may_change}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:8]


def rerun_of(point: Point) -> Point:
    """Return a point whose run trains on all of its training data and is judged by its test data."""
    if point.run.data["validation"] is None:
        raise ValueError(f"{point.name}: judged by its test data already; choose by validation=0.2 under options")
    run = dataclasses.replace(point.run, data={**point.run.data, "validation": None})
    values = {name: value for name, value in point.values.items() if name != "validation"}
    return point._replace(run=run, values=values, id=_identity(run, ASIDE))


def _named(found: Collection[Sequence[Point]]) -> list[Point]:
    """Each run once, under a name of its own: by the values that all points with it share, or by those of any."""
    runs = [_merged(same, any_of=False) for same in found]
    number = Counter(run.name for run in runs)
    runs = [_merged(same, any_of=number[run.name] > 1) for run, same in zip(runs, found, strict=True)]
    number = Counter(run.name for run in runs)
    return [run._replace(name=f"{run.name} ({run.id})") if number[run.name] > 1 else run for run in runs]


def _merged(same: Sequence[Point], any_of: bool) -> Point:
    """The same run several times: a value that they do not share is left out, or becomes all of theirs (`any_of`)."""
    values = {}
    for name in same[0].values:
        different = [*dict.fromkeys(point.values.get(name) for point in same)]
        if len(different) == 1:
            values[name] = different[0]
        elif any_of:
            values[name] = tuple(different)
    return same[0]._replace(values=values, name=_name(values) or str(same[0].run.record["method"]))


def _name(values: Mapping[str, Any]) -> str:
    told = [_text(value) if option in _BARE else f"{option}={_text(value)}" for option, value in values.items()]
    return ", ".join(told)


def _text(value: Any) -> str:
    if isinstance(value, Own):
        return value.name
    if isinstance(value, tuple):
        return "+".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
