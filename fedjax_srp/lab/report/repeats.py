"""Rows of a table: runs that differ only in the seed are repeats of one row.

`History.config` has the settings of a run, saved by Python or by the command line.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp import methods
from fedjax_srp.lab.report import fairness, table
from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.description import DATACLASS, FUNCTION, PART, describe
from fedjax_srp.results.history import History

OptionPath = tuple[str, ...]  # the keys of an option, from the top of `History.config`
Settings = Mapping[
    OptionPath, str
]  # option -> text of its value; equal values have equal texts

_LEFT_OUT = {
    "key",
    "seed",
    "seeds",
    "num_seeds",
    # have no effect
    "chunk_size",
    "large_chunk",
    "num_devices",
    "device",
    "shard_data",
    "unknown",
    "record_loss",
    # except for the default one, which is compared
    "evaluations",
    # repeat other options, or the checksum of the data
    "name",
    "method",
    "arguments",
    "dataset_options",
    "program",
    # runs of different tasks are in different tables
    "dataset",
    "num_clients",
}
# compared only between runs of one method
_METHOD_SPECIFIC = (
    ("algorithm",),
    ("participation",),
    ("evaluation",),
    ("options", "cut"),
    ("options", "evaluation"),
)
_CUSTOM_CLASSES = (
    ("options", "algorithm"),
    ("options", "participation"),
)  # the user's own classes
_LIMITS = (("num_rounds",), ("time_limit",), ("target",))
_DATA = ("data_checksum",)
_MAX_LETTERS = 40  # of a value in the name of a row; longer ones are cut
_PACKAGE = "fedjax_srp."
_CLASS_KEYS = (PART, DATACLASS, FUNCTION)  # keys of class names in a description
_SECTIONS = {"options": "method", "clock_options": "clock", "dataset_options": "data"}


class Run(NamedTuple):
    """A run and its settings."""

    folder: Path
    history: History
    settings: Settings

    @property
    def seed(self) -> str:
        """The recorded key, as Python and the command line store it; or the seed, or the folder."""
        for name in ("key", "seed"):
            value = self.history.config.get(name)
            if value is not None:
                return str(value)
        return str(self.folder)

    @property
    def called(self) -> str:
        """Label of the seed: "seed n" for `jax.random.key(n)`, the whole key otherwise."""
        seed = self.history.config.get("seed")
        key = self.history.config.get("key")
        if seed is None and key and list(key) == [0, key[-1]] * (len(key) // 2):
            seed = key[-1]
        if seed is None:
            return f"key {self.seed}"
        return f"seed {seed}"

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the objects of this run that have no description."""
        return tuple(map(str, self.history.config.get("unknown") or ()))


class Rows(NamedTuple):
    """Runs as the rows of a table."""

    runs: dict[str, list[Run]]  # name of the row -> its repeats
    twins: dict[str, str]  # row -> the row of the same algorithm without doubling
    options: dict[str, dict[str, str]]  # row -> option in its name -> value
    notes: list[str]  # one line each

    @property
    def histories(self) -> dict[str, list[History]]:
        """Name of the row -> histories of its repeats."""
        return {name: [run.history for run in runs] for name, runs in self.runs.items()}


class _Row(NamedTuple):
    method: str
    settings: Settings  # with the options of the data
    runs: list[Run]


def read(folder: Path) -> Run:
    """Return the run of a folder; errors as in `History.load`."""
    return of(History.load(folder), folder)


def with_evaluation(run: Run, evaluation: str | None) -> Run:
    """Return the run with this evaluation as its default one; None keeps the default."""
    accuracies = run.history.accuracies
    if evaluation is None or next(iter(accuracies), None) == evaluation:
        return run
    if evaluation not in accuracies:
        known = printable(", ".join(accuracies)) or "none"
        raise ValueError(
            f"evaluation={evaluation!r}: {str(run.folder)!r} has {known}; "
            "choose one that all runs have, or run it with --evaluations"
        )
    reordered = {evaluation: accuracies[evaluation], **accuracies}
    without_models = {
        "server_state": None,
        "client_states": None,
    }  # else `replace` would read them
    return of(replace(run.history, accuracies=reordered, **without_models), run.folder)


def of(history: History, folder: Path) -> Run:
    """Return the run of a history in memory and its folder."""
    return Run(folder, history, _settings(history))


def why_no_accuracies(histories: Iterable[History]) -> str:
    """Return the end of an error message for runs without accuracies: the reason and the remedy."""
    scores = set()
    for history in histories:
        if history.accuracies and len(history.eval_round):
            scores.add(repr(history.score_name))
    if not scores:
        return "; run with evaluations (--evaluations, eval_every)"
    return (
        f", but by {' and '.join(sorted(scores))}, where less is better; "
        "draw them with srp.plots.accuracy_over_time, or use History.to_frame"
    )


def by_task(runs: Iterable[Run]) -> tuple[dict[str, list[Run]], list[Run]]:
    """Group runs by data set, number of clients and score; return also runs judged by errors."""
    tasks: dict[str, list[Run]] = {}
    errors = []
    for run in runs:
        task = f"{run.history.config.get('dataset', 'data')}_{run.history.num_clients}_clients"
        if run.history.score_name != "accuracy":
            task += f"_{run.history.score_name.replace(' ', '_')}"
        if run.history.smaller_is_better:
            errors.append(run)
        elif len(run.history.eval_round):
            tasks.setdefault(task, []).append(run)
    return tasks, errors


def without_copies(runs: Iterable[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return the runs without bit-identical copies, and pairs of a copy and the run it equals."""
    kept: dict[Any, list[Run]] = {}
    copies = []
    for run in runs:
        same_settings = kept.setdefault((*_identity(run), run.seed), [])
        for other in same_settings:
            if _same_results(run.history, other.history):
                copies.append((run, other))
                break
        else:
            same_settings.append(run)
    return [run for of_seed in kept.values() for run in of_seed], copies


def _identity(run: Run) -> tuple[str, frozenset[tuple[OptionPath, str]]]:
    return run.history.name, frozenset(run.settings.items())


def rows(runs: Sequence[Run]) -> Rows:
    """Return the rows of a table, in the order of the methods, then of the values that differ."""
    groups, notes = _group(runs)
    differing = _differing_options(groups)
    position_of = {name: position for position, name in enumerate(methods.names())}

    def order(row: _Row) -> tuple[int, str, list[tuple[int, float, str]]]:
        position = position_of.get(row.method, len(position_of))
        return position, row.method, _sort_key(row, differing)

    groups.sort(key=order)
    paths = _paths(groups)
    naming = _named_options(groups, differing)
    names = [
        _row_name(row, options, paths)
        for row, options in zip(groups, naming, strict=True)
    ]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for i, name in enumerate(names):
        if name in repeated:  # they differ in the place in a list
            places = [
                ".".join(path[1:]) for path in naming[i] if path != _without_indices(path)
            ]
            names[i] += f" ({', '.join(places)})"
    row_of = dict(zip(names, groups, strict=True))
    twins = {}
    options = {}
    for (name, row), of_row in zip(row_of.items(), naming, strict=True):
        twin = _find_twin(row, row_of)
        if twin is not None:
            twins[name] = twin
        options[name] = {}
        for path in of_row:
            options[name][_option_prefix(path, paths).rstrip("= ")] = row.settings[path]
    notes += _notes_on_validation(row_of)
    notes += _notes_on_shared_trainings(row_of)
    notes += fairness.notes_on_unsent_means({n: row.runs for n, row in row_of.items()})
    return Rows({name: row.runs for name, row in row_of.items()}, twins, options, notes)


def _notes_on_validation(row_of: Mapping[str, _Row]) -> list[str]:
    held_out = []
    for name, row in row_of.items():
        if row.runs[0].history.judged_on == "validation":
            held_out.append(table.named(name))
    if not held_out:
        return []
    which = "all rows" if len(held_out) == len(row_of) else "; ".join(held_out)
    return [f"judged by training data that were held out, not by test data: {which}"]


def _notes_on_shared_trainings(row_of: Mapping[str, _Row]) -> list[str]:
    trainings: dict[Any, list[str]] = {}
    for name, row in row_of.items():
        seconds = row.runs[0].history.host_seconds
        if not math.isnan(seconds):
            settings = {
                p: text for p, text in row.settings.items() if p[-1] != "evaluation"
            }
            training = (seconds, frozenset(settings.items()))
            trainings.setdefault(training, []).append(table.named(name))
    shared = [" and ".join(names) for names in trainings.values() if len(names) > 1]
    if not shared:
        return []
    return [f"rows of one training, each with all of its seconds: {'; '.join(shared)}"]


def _settings(history: History) -> dict[OptionPath, str]:
    """Return the settings of a run without the seed and options that change no result."""
    settings = {
        path: text for path, text in _flatten(history.config) if path[0] not in _LEFT_OUT
    }
    for path in (
        ("options", "participation"),
        ("clock_options", "name"),
        ("clock_options", PART),
    ):
        settings.pop(path, None)
    for path in [*settings]:
        option = path[-1].rpartition(".")[2]
        if option != path[-1] and settings[path] == settings.get((path[0], option)):
            # an option of a second optimizer, equal to that of the training optimizer
            del settings[path]
    method = history.config.get("method") or {}
    for part in ("algorithm", "participation"):
        for (*within, last), text in _flatten(method.get(part) or {}):
            is_users_class = last == PART and not within and "." in text
            is_class_within = last == PART and within and within != ["model"]
            if is_users_class or is_class_within:
                # e.g. the class of an optimizer
                settings["options", ".".join(within) or part, last] = text
    settings["evaluation",] = str(history.evaluation)
    program = history.config.get("program") or {}
    for name in ("rounds", "costs"):
        if name in program:
            settings["program", name] = str(program[name])
    if history.evaluation in program:
        settings["program", "evaluation"] = str(program[history.evaluation])
    return settings


def _flatten(
    options: Mapping[str, Any], before: OptionPath = ()
) -> Iterator[tuple[OptionPath, str]]:
    for name, value in options.items():
        path = (*before, name)
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(index): entry for index, entry in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _flatten(value, path)
        elif name == PART and str(value).startswith(
            _PACKAGE
        ):  # users' parts keep their module
            yield path, _without_module(str(value))
        else:
            yield path, _as_text(value)


def _without_module(name: str) -> str:
    return name.rpartition(".")[2]


def _as_text(value: Any) -> str:
    """Return the text of a value, the same for equal numbers, and for 0.1 and its float32 value."""
    if isinstance(value, list):
        return f"[{', '.join(map(_as_text, value))}]"
    if not isinstance(value, float):
        return str(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if float(single) == value:
        return str(single)
    return str(value)


def _group(runs: Sequence[Run]) -> tuple[list[_Row], list[str]]:
    """Group runs of equal settings into rows, with notes.

    If equal seeds gave unequal results, each run has a row of its own.
    """

    def order(run: Run) -> Any:
        return run.history.name, sorted(run.settings.items()), run.seed, run.folder

    groups: dict[Any, list[Run]] = {}
    for run in sorted(runs, key=order):
        groups.setdefault(_identity(run), []).append(run)
    of_data: dict[
        str, Settings
    ] = {}  # checksum of data -> options of the first run on them
    table_rows: list[_Row] = []
    unknown_if_averaged: set[str] = set()
    unknown_if_separate: set[str] = set()
    for group in groups.values():
        method = group[0].history.name
        settings = group[0].settings
        if _DATA in settings:
            data_options = group[0].history.config.get("dataset_options") or {}
            data = dict(_flatten({"dataset_options": data_options}))
            settings = {**settings, **of_data.setdefault(settings[_DATA], data)}
        unknown = {part for run in group for part in run.unknown}
        if _are_repeats(group):
            table_rows.append(_Row(method, settings, group))
            if len(group) > 1:
                unknown_if_averaged |= unknown
            continue
        unknown_if_separate |= unknown
        common = os.path.commonpath([run.folder for run in group])
        for run in group:
            folder = os.path.relpath(run.folder, common)
            table_rows.append(_Row(method, {**settings, ("folder",): folder}, [run]))
    notes = []
    for parts, doubt in (
        (unknown_if_averaged, "repeats may differ in more than the seed:"),
        (unknown_if_separate, "one row per folder: runs with equal seeds differ, and"),
    ):
        if parts:
            notes.append(
                f"{doubt} the definition of {', '.join(sorted(parts))} is not recorded; "
                "make it of numbers, texts, named functions and parts (srp.part)"
            )
    return table_rows, notes


def _are_repeats(group: Sequence[Run]) -> bool:
    """Return True if all seeds differ, False if equal seeds gave unequal results.

    The same run twice is an error.
    """
    of_seed: dict[str, list[Run]] = {}
    for run in group:
        for other in of_seed.setdefault(run.seed, []):
            if _same_results(run.history, other.history):
                end = "equal results; remove one of them"
            elif not run.unknown:
                end = (
                    "other results; remove one of them, or draw both: "
                    "srp.plots.accuracy_over_time({'old': ..., 'new': ...})"
                )
            else:
                continue
            same = f"{other.folder} and {run.folder} hold the same run"
            which = f"{run.history.name} with {run.called}"
            raise ValueError(printable(f"{same}, {which}, with {end}"))
        of_seed[run.seed].append(run)
    return len(of_seed) == len(group)


def _same_results(one: History, other: History) -> bool:
    return np.array_equal(one.compute_time, other.compute_time) and np.array_equal(
        one.accuracy, other.accuracy, equal_nan=True
    )


def _differing_options(table_rows: Sequence[_Row]) -> list[OptionPath]:
    """Return the options that differ between rows, method-specific ones within a method."""
    return [
        path
        for path in dict.fromkeys(path for row in table_rows for path in row.settings)
        if _differs(path, table_rows)
    ]


def _differs(path: OptionPath, table_rows: Sequence[_Row]) -> bool:
    having = [row for row in table_rows if path in row.settings]
    if "." in path[-1]:  # an option of an optional part
        lacking = {row.method for row in table_rows if path not in row.settings}
        if not lacking.isdisjoint(row.method for row in having):
            return True
    is_last_resort = path == _DATA or _is_program(path) or path[:2] in _CUSTOM_CLASSES
    if is_last_resort or path != _without_indices(path):
        return False  # a last resort of `_named_options`
    values = {row.settings[path] for row in having}
    if path not in _METHOD_SPECIFIC:
        return len(values) > 1
    of_methods = {(row.method, row.settings[path]) for row in having}
    return len(of_methods) > len({method for method, _ in of_methods})


def _sort_key(row: _Row, differing: Sequence[OptionPath]) -> list[tuple[int, float, str]]:
    """Return the sort key of a row: missing options first, then numbers by size, then texts."""

    def rank(text: str | None) -> tuple[int, float, str]:
        if text is None:
            return 0, 0.0, ""
        try:
            return 1, float(text), text
        except ValueError:
            return 2, 0.0, text

    return [rank(row.settings.get(path)) for path in (*differing, *sorted(row.settings))]


def _named_options(
    table_rows: Sequence[_Row], differing: Sequence[OptionPath]
) -> list[list[OptionPath]]:
    """Return the options that name each row.

    They are the differing ones, and as many more as make its name unique.
    """
    paths = _paths(table_rows)
    naming = []
    of_name: dict[str, list[_Row]] = {}
    for row in table_rows:
        options = [path for path in differing if row.settings.get(path, "None") != "None"]
        naming.append(options)
        of_name.setdefault(_row_name(row, options, paths), []).append(row)
    for row, options in zip(table_rows, naming, strict=True):
        namesakes = of_name[_row_name(row, options, paths)]
        by_program = [path for path in row.settings if _is_program(path)]
        for path in row.settings:
            if path in by_program:
                continue
            left = [
                other
                for other in namesakes
                if other.settings.get(path) == row.settings[path]
            ]
            if len(left) < len(namesakes):
                options.append(path)
                namesakes = left
        # own code has no other name than its program
        others = [other for other in namesakes if _agree(row, other, by_program)]
        for path in by_program:
            if len({other.settings.get(path) for other in others}) > 1:
                options.append(path)
                text = row.settings[path]
                others = [other for other in others if other.settings.get(path) == text]
    return naming


def _row_name(row: _Row, options: Sequence[OptionPath], paths: set[OptionPath]) -> str:
    if not options:
        return row.method
    words = [methods.label(row.method)]
    for path in options:
        text = row.settings[path]
        if len(text) > _MAX_LETTERS:
            text = f"{text[: _MAX_LETTERS - 12]}...{zlib.crc32(text.encode()):08x}"
        words.append(_option_prefix(path, paths) + text)
    return ", ".join(words)


def _option_prefix(path: OptionPath, paths: set[OptionPath]) -> str:
    """Return the shortest unique name of an option, and "=" or a blank, to put before its value."""
    if path == _DATA:
        return "data "
    if path == ("program", "rounds"):
        return "program "
    if path == ("dataset_options", "seed"):
        return "partition_seed="
    words = _without_class_key(path)
    others = {_without_class_key(other) for other in paths}
    for fewest in range(1, len(words)):
        if sum(other[-fewest:] == words[-fewest:] for other in others) == 1:
            name = ".".join(words[-fewest:])
            return f"clock.{name}=" if words[0] == "clock_options" else f"{name}="
    # method.alpha, as on the command line, and data.alpha
    section = _SECTIONS.get(words[0], words[0])
    return f"{'.'.join((section, *words[1:]))}="


def _without_class_key(path: OptionPath) -> OptionPath:
    """Return the path of a part from that of its class name, without indices of lists."""
    path = _without_indices(path)
    if len(path) > 2 and path[-1] in ("name", *_CLASS_KEYS):
        return path[:-1]
    return path


def _without_indices(path: OptionPath) -> OptionPath:
    return tuple(word for word in path if not word.isdecimal())


def _paths(table_rows: Iterable[_Row]) -> set[OptionPath]:
    return {path for row in table_rows for path in row.settings}


def _is_program(path: OptionPath) -> bool:
    return path[0] == "program"


def distinguishing_suffix(value: Any, others: Sequence[Any]) -> str:
    """Return the fields, in brackets, that distinguish an object from others of its name.

    Fields that are None are left out. A class has its module in front if the others have a class of
    that name.
    """
    fields = _fields(value)
    fields_of_others = [_fields(other) for other in others]
    named: dict[str, list[str]] = {}  # field -> its texts
    for path, text in fields.items():
        is_class = path[-1] in _CLASS_KEYS
        if is_class:
            is_same = all(text in other.values() for other in fields_of_others)
        else:
            is_same = all(other.get(path) == text for other in fields_of_others)
        if text == "None" or is_same:
            continue
        short = _without_module(text)
        namesakes = [_without_module(str(other.get(path))) for other in fields_of_others]
        texts = named.setdefault(_without_class_key(path)[-1], [])
        word = short if is_class and short not in namesakes else text
        if word not in texts:
            texts.append(word)
    words = []
    for name, texts in named.items():
        word = "+".join(texts)
        words.append(f"{name}={word}" if name else word)
    return f"({', '.join(words)})" if words else ""


def _fields(value: Any) -> dict[OptionPath, str]:
    return dict(_flatten({"": {"": describe(value)}}))


def _find_twin(row: _Row, row_of: Mapping[str, _Row]) -> str | None:
    """Return the row of the same algorithm without doubling and with equal options.

    The time to a target does not depend on rounds after it, so lengths may differ: a row of equal
    length is preferred, then the longest.
    """
    recipe = methods.RECIPES.get(row.method)
    base, _, policy = row.method.partition(" + ")
    twin = base if policy == "doubling" else None
    if recipe is not None:
        twin = recipe.twin
    candidates = [name for name, other in row_of.items() if other.method == twin]
    # programs of different policies differ
    may_differ = [*_METHOD_SPECIFIC, *filter(_is_program, _paths(row_of.values()))]
    for name in candidates:
        if _agree(row, row_of[name], may_differ):
            return name
    for name in reversed(candidates):
        if _agree(row, row_of[name], (*may_differ, *_LIMITS)):
            return name
    return None


def _agree(row: _Row, twin: _Row, left_out: Sequence[OptionPath]) -> bool:
    """Return True if a row has the twin's options; one that is None for the twin may be missing."""
    for path, text in twin.settings.items():
        if path not in left_out and row.settings.get(path, "None") != text:
            return False
    return True
