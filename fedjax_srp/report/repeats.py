"""Rows of a table: runs that differ only in the seed are repeats of one row, all others have their own rows.

`History.config` has the settings of a run, saved by Python or by the command line.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp import methods
from fedjax_srp.description import CODE, DATACLASS, FUNCTION, PART, describe
from fedjax_srp.history import History

Place = tuple[str, ...]  # the keys that lead to an option
Made = Mapping[Place, str]  # option -> its value, equal where values are

_SEED = ("key", "seed", "seeds", "num_seeds")
_NO_EFFECT = (
    *("chunk_size", "large_chunk", "num_devices", "device", "shard_data", "unknown", "record_loss"),
    "evaluations",  # except for the default one, which is compared
)
_SAID_TWICE = ("name", "method", "arguments", "dataset_options")  # in other options, or in the checksum of the data
_TASK = ("dataset", "num_clients")  # a table each
_OF_METHOD = (  # differ between methods by nature
    *(("algorithm",), ("participation",), ("evaluation",)),
    *(("options", "cut"), ("options", "evaluation")),
)
_OWN = (("options", "algorithm"), ("options", "participation"))  # classes of one's own
_LIMITS = (("num_rounds",), ("time_limit",), ("target",))
_DATA = ("data_checksum",)
_LONG = 40  # letters of a value in the name of a row
_PACKAGE = "fedjax_srp."
_OF_CLASSES = (PART, DATACLASS, FUNCTION)  # keys of their names in a description
_SECTIONS = {"options": "method", "clock_options": "clock", "dataset_options": "data"}


class Run(NamedTuple):
    """Run folder, with the settings of the run."""

    folder: Path
    history: History
    made: Made

    @property
    def seed(self) -> str:
        """The key if recorded, the same in Python and on the command line."""
        known = (self.history.config.get(name) for name in ("key", "seed"))
        return str(next((seed for seed in known if seed is not None), self.folder))

    @property
    def called(self) -> str:
        """The name of the seed: that of `jax.random.key(n)` is n; another key is written down."""
        seed, key = (self.history.config.get(name) for name in ("seed", "key"))
        if seed is None and key:
            seed = key[-1] if list(key) == [0, key[-1]] * (len(key) // 2) else None
        return f"seed {seed}" if seed is not None else f"key {self.seed}"

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts without a description."""
        return tuple(map(str, self.history.config.get("unknown") or ()))


class Rows(NamedTuple):
    """Runs as the rows of a table."""

    runs: dict[str, list[Run]]  # name of the row -> its repeats
    twins: dict[str, str]  # row -> the row of the same algorithm without doubling
    options: dict[str, dict[str, str]]  # row -> the options in its name, and their values
    notes: list[str]  # a line each

    @property
    def histories(self) -> dict[str, list[History]]:
        """Name of the row -> histories of its repeats."""
        return {name: [run.history for run in runs] for name, runs in self.runs.items()}


class _Row(NamedTuple):
    method: str
    made: Made
    said: Made  # the same, with the facts of the data
    runs: list[Run]


def read(folder: Path) -> Run:
    """Return the run of a folder; errors as in `History.load`."""
    return of(History.load(folder), folder)


def judged_by(run: Run, evaluation: str | None) -> Run:
    """Return the run with this evaluation as its default one; None changes nothing."""
    known = run.history.accuracies
    if evaluation is None or next(iter(known), None) == evaluation:
        return run
    if evaluation not in known:
        raise ValueError(
            f"evaluation={evaluation!r}: {run.folder} has {', '.join(known) or 'none'}; choose one that all runs have, "
            "or run it with --evaluations"
        )
    return of(replace(run.history, accuracies={evaluation: known[evaluation], **known}), run.folder)


def of(history: History, folder: Path) -> Run:
    """Return the run of a history in memory and its folder."""
    return Run(folder, history, _made(history))


def scored_by(histories: Iterable[History]) -> str:
    """Return the reason and the remedy for a message that none of these runs has accuracies."""
    evaluated = [history for history in histories if history.accuracies and len(history.eval_round)]
    if names := sorted({history.score_name for history in evaluated}):
        drawn = "draw them with srp.plots.accuracy_over_time, or use History.to_frame"
        return f", but by {' and '.join(map(repr, names))}, where less is better; {drawn}"
    return "; run with evaluations (--evaluations, eval_every)"


def by_task(runs: Iterable[Run]) -> tuple[dict[str, list[Run]], list[Run]]:
    """Return the runs of each table, by data set and number of clients; and the runs whose scores are errors."""
    tasks: dict[str, list[Run]] = {}
    errors = []
    for run in runs:
        task = f"{run.history.config.get('dataset', 'data')}_{run.history.num_clients}_clients"
        if run.history.smaller_is_better:
            errors.append(run)
        elif len(run.history.eval_round):
            tasks.setdefault(task, []).append(run)
    return tasks, errors


def once(runs: Iterable[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return the runs without bit-identical copies; and the copies, each with the run that it repeats."""
    kept: dict[Any, list[Run]] = {}
    twice = []
    for run in runs:
        alike = kept.setdefault((run.history.name, frozenset(run.made.items()), run.seed), [])
        same = next((other for other in alike if _same_results(run.history, other.history)), None)
        if same is None:
            alike.append(run)
        else:
            twice.append((run, same))
    return [run for of_seed in kept.values() for run in of_seed], twice


def rows(runs: Sequence[Run]) -> Rows:
    """Return the rows of a table, in the order of the methods, then of the values that differ."""
    found, notes = _grouped(runs)
    differing = _differing(found)
    place_of = {name: place for place, name in enumerate(methods.names())}
    found.sort(key=lambda row: (place_of.get(row.method, len(place_of)), row.method, _ranks(row, differing)))
    shown, places = _shown(found, differing), {place for row in found for place in row.said}
    names = [_name(row, of_row, places) for row, of_row in zip(found, shown, strict=True)]
    named = [*zip(names, found, strict=True)]
    if held_out := [name for name, row in named if row.runs[0].history.judged_on == "validation"]:
        which = "all rows" if len(held_out) == len(found) else "; ".join(map(methods.label, held_out))
        notes.append(f"judged by training data that were held out, not by test data: {which}")
    trainings: dict[Any, list[str]] = {}
    for name, row in named:
        trained = frozenset((place, text) for place, text in row.made.items() if place[-1] != "evaluation")
        trainings.setdefault((row.runs[0].history.host_seconds, trained), []).append(methods.label(name))
    for (seconds, _), judged in trainings.items():
        if len(judged) > 1 and seconds == seconds:
            notes.append(f"one training, whose seconds stand in each of its rows: {'; '.join(judged)}")
    twins = {name: _twin(row, found, names) for name, row in named}
    options = {
        name: {_called(place, places).rstrip("= "): row.said[place] for place in of_row}
        for (name, row), of_row in zip(named, shown, strict=True)
    }
    runs_of = {name: row.runs for name, row in named}
    return Rows(runs_of, {name: twin for name, twin in twins.items() if twin is not None}, options, notes)


def _made(history: History) -> dict[Place, str]:
    """Return the settings of a run without the seed and options that change no result."""
    left_out = {*_SAID_TWICE, *_SEED, *_NO_EFFECT, *_TASK}
    made = {place: text for place, text in _flat(history.config) if place[0] not in left_out}
    for place in (("options", "participation"), ("clock_options", "name"), ("clock_options", PART)):
        made.pop(place, None)  # these too
    for place in [*made]:
        section, option = place[0], place[-1].rpartition(".")[2]
        if option != place[-1] and made[place] == made.get((section, option)):
            del made[place]  # of a second optimizer that equals that of training
    for part in ("algorithm", "participation"):
        for (*within, last), text in _flat((history.config.get("method") or {}).get(part, {})):
            is_own = last == PART and not within and "." in text
            if last == CODE or is_own or (last == PART and within and within != ["model"]):
                made["options", ".".join(within) or part, last] = text  # the class of an optimizer, say
    return made | {("evaluation",): str(history.evaluation)}


def _flat(options: Mapping[str, Any], before: Place = ()) -> Iterator[tuple[Place, str]]:
    for name, value in options.items():
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            yield from _flat({str(place): entry for place, entry in enumerate(value)}, (*before, name))
        elif isinstance(value, Mapping):
            yield from _flat(value, (*before, name))
        else:
            is_ours = name == PART and str(value).startswith(_PACKAGE)  # others' parts are named with their module
            yield (*before, name), str(value).rpartition(".")[2] if is_ours else _text(value)


def _text(value: Any) -> str:
    """Return one text for equal numbers, also for 0.1 and its float32 value."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if not isinstance(value, float):
        return str(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return str(single) if float(single) == value else str(value)


def _grouped(runs: Sequence[Run]) -> tuple[list[_Row], list[str]]:
    """Return runs of equal settings as one row each, and notes; one row per folder if their results disagree."""
    groups: dict[Any, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.history.name, sorted(run.made.items()), run.seed, run.folder)):
        groups.setdefault((run.history.name, frozenset(run.made.items())), []).append(run)
    of_data: dict[str, Made] = {}  # of equal data, the options of one
    found: list[_Row] = []
    doubtful: dict[str, list[str]] = {"averaged": [], "apart": []}
    for group in groups.values():
        method, made = group[0].history.name, group[0].made
        data = dict(_flat({"dataset_options": group[0].history.config.get("dataset_options") or {}}))
        said = {**made, **of_data.setdefault(made.get(_DATA, ""), data if _DATA in made else {})}
        parts = list(dict.fromkeys(part for run in group for part in run.unknown))
        if _are_repeats(group):
            found.append(_Row(method, made, said, group))
            doubtful["averaged"] += parts if len(group) > 1 else []
            continue
        doubtful["apart"] += parts
        common = os.path.commonpath([run.folder for run in group])
        for run in group:
            folder = {("folder",): os.path.relpath(run.folder, common)}
            found.append(_Row(method, {**made, **folder}, {**said, **folder}, [run]))
    remedy = "make it of numbers, texts, named functions and parts (srp.part)"
    why = {
        "averaged": "repeats may differ in more than the seed:",
        "apart": "a row a folder: runs of one seed differ, and",
    }
    parts = {how: ", ".join(sorted({*of_rows})) for how, of_rows in doubtful.items() if of_rows}
    return found, [f"{why[how]} what made {names} is not recorded; {remedy}" for how, names in parts.items()]


def _are_repeats(group: Sequence[Run]) -> bool:
    """True if runs of equal settings differ in the seed, False if equal seeds gave unequal results."""
    of_seed: dict[str, list[Run]] = {}
    for run in group:
        for other in of_seed.setdefault(run.seed, []):
            if not run.unknown or _same_results(run.history, other.history):
                raise ValueError(
                    f"{other.folder} and {run.folder} hold the same run, {run.history.name} with {run.called}; "
                    "remove one of them"
                )
        of_seed[run.seed].append(run)
    return len(of_seed) == len(group)


def _same_results(one: History, other: History) -> bool:
    return np.array_equal(one.compute_time, other.compute_time) and np.array_equal(
        one.accuracy, other.accuracy, equal_nan=True
    )


def _differing(found: Sequence[_Row]) -> list[Place]:
    """Return the options that differ among the rows that have them; options of a method, within it."""
    differing: dict[Place, None] = {}
    for place in dict.fromkeys(place for row in found for place in row.said):
        having = [row for row in found if place in row.said]
        lacking = {row.method for row in found if place not in row.said}
        if "." in place[-1] and not lacking.isdisjoint(row.method for row in having):  # of an optional part
            differing[place] = None
        values = {(row.method if place in _OF_METHOD else "", row.said[place]) for row in having}
        groups = {row.method if place in _OF_METHOD else "" for row in having}
        is_code = _is_code(place) or place[:2] in _OWN
        is_last_resort = place == _DATA or is_code or place != _without_places(place)  # see `_shown`
        if len(values) > len(groups) and not is_last_resort:
            differing[place] = None
    return list(differing)


def _ranks(row: _Row, differing: Sequence[Place]) -> list[tuple[int, float, str]]:
    """Return the sort key of a row: numbers by size, words by letter, missing options first."""

    def rank(text: str | None) -> tuple[int, float, str]:
        if text is None:
            return 0, 0.0, ""
        try:
            return 1, float(text), text
        except ValueError:
            return 2, 0.0, text

    return [rank(row.said.get(place)) for place in (*differing, *sorted(row.made))]


def _shown(found: Sequence[_Row], differing: Sequence[Place]) -> list[list[Place]]:
    """Return the options in the name of every row: the differing ones that it has; more if names would be equal."""
    places = {place for row in found for place in row.said}
    shown: list[list[Place]] = [[p for p in differing if row.said.get(p, "None") != "None"] for row in found]
    names = [_name(row, of_row, places) for row, of_row in zip(found, shown, strict=True)]
    result = []
    for row, of_row, name in zip(found, shown, names, strict=True):
        alike, more = [other for other, same in zip(found, names, strict=True) if same == name], []
        for place in sorted(row.made, key=_is_code):
            same_there = [other for other in alike if other.made.get(place) == row.made[place]]
            if len(same_there) < len(alike):
                more.append(place)
                alike = same_there
        result.append([*of_row, *more])
    return result


def _name(row: _Row, shown: Sequence[Place], places: set[Place]) -> str:
    words = []
    for place in shown:
        text = row.said[place]
        short = text if len(text) <= _LONG else f"{text[: _LONG - 12]}...{zlib.crc32(text.encode()):08x}"
        words.append(_called(place, places) + short)
    return ", ".join([methods.label(row.method), *words]) if words else row.method


def _called(place: Place, places: set[Place]) -> str:
    """Return the shortest unique name of an option, with the sign before its value."""
    if place == _DATA:
        return "data "
    if place == ("dataset_options", "seed"):
        return "partition_seed="
    words, plain = _without_name(place), {_without_name(other) for other in places}
    alike = [sum(other[-n:] == words[-n:] for other in plain) for n in range(1, len(words))]
    fewest = alike.index(1) + 1 if 1 in alike else len(words)
    if fewest == len(words):  # method.alpha, as on the command line, and data.alpha
        return f"{'.'.join((_SECTIONS.get(words[0], words[0]), *words[1:]))}="
    return f"{'clock.' if words[0] == 'clock_options' else ''}{'.'.join(words[-fewest:])}="


def _without_name(place: Place) -> Place:
    """Return the place of a part, given that of its class; of one in a list, that of the list."""
    place = _without_places(place)
    return place[:-1] if place[-1] in ("name", *_OF_CLASSES) and len(place) > 2 else place


def _without_places(place: Place) -> Place:
    return tuple(word for word in place if not word.isdecimal())


def _is_code(place: Place) -> bool:
    return place[-1].endswith(CODE)


def told_apart(value: Any, alike: Sequence[Any]) -> str:
    """Return the fields, in brackets, in which an object differs from others of its name, unless at a default.

    A class is called with its module where the others have one of that name too, and its code is named last.
    """
    own, *others = [dict(_flat({"": {"": describe(each)}})) for each in (value, *alike)]
    fields: dict[str, dict[str, None]] = {}
    told: set[int] = set()  # the others that a class or field tells apart
    for place, text in sorted(own.items(), key=lambda entry: _is_code(entry[0])):
        is_class = place[-1] in _OF_CLASSES
        alone = [text not in each.values() if is_class else each.get(place) != text for each in others]
        if text == "None" or not any(alone) or (_is_code(place) and told.issuperset(np.flatnonzero(alone))):
            continue
        short = text.rpartition(".")[2]
        is_unique = not any(short == str(each.get(place)).rpartition(".")[2] for each in others)
        word = short if is_class and is_unique else text
        fields.setdefault(_without_name(place)[-1], {})[word] = None
        told |= {*np.flatnonzero(alone).tolist()}
    words = ", ".join(f"{name}={'+'.join(texts)}" if name else "+".join(texts) for name, texts in fields.items())
    return f"({words})" if words else ""


def _twin(row: _Row, found: Sequence[_Row], names: Sequence[str]) -> str | None:
    """Return the row of the same algorithm without doubling, of equal options, if need be except for the length.

    The time to a target does not depend on the length of the run after it.
    """
    recipe = methods.RECIPES.get(row.method)
    base, _, policy = row.method.partition(" + ")
    wanted = recipe.twin if recipe is not None else base if policy == "doubling" else None
    for left_out, order in ((_OF_METHOD, 1), ((*_OF_METHOD, *_LIMITS), -1)):  # of other lengths, the longest
        for other, name in [*zip(found, names, strict=True)][::order]:
            # an option that is None there may not exist for this method, such as the pool of a policy
            shared = [place for place in other.made if place not in left_out]
            if other.method == wanted and all(row.made.get(place, "None") == other.made[place] for place in shared):
                return name
    return None
