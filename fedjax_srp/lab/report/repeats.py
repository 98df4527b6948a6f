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
from fedjax_srp.lab.report import table
from fedjax_srp.parts.description import CODE, DATACLASS, FUNCTION, PART, describe
from fedjax_srp.results.history import History

OptionPath = tuple[str, ...]  # the keys of an option, from the top of `History.config`
Settings = Mapping[
    OptionPath, str
]  # option -> text of its value; equal values have equal texts

_LEFT_OUT = {
    *("key", "seed", "seeds", "num_seeds"),
    *(
        "chunk_size",
        "large_chunk",
        "num_devices",
        "device",
        "shard_data",
        "unknown",
        "record_loss",
    ),  # have no effect
    "evaluations",  # except for the default one, which is compared
    *(
        "name",
        "method",
        "arguments",
        "dataset_options",
    ),  # repeat other options, or the checksum of the data
    *("dataset", "num_clients"),  # runs of different tasks are in different tables
}
_METHOD_SPECIFIC = (  # compared only between runs of one method
    *(("algorithm",), ("participation",), ("evaluation",)),
    *(("options", "cut"), ("options", "evaluation")),
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
        """The recorded key, equal for Python and the command line; else the seed, else the folder."""
        known = (self.history.config.get(name) for name in ("key", "seed"))
        return str(next((seed for seed in known if seed is not None), self.folder))

    @property
    def called(self) -> str:
        """Label of the seed: "seed n" for `jax.random.key(n)`, the whole key otherwise."""
        seed, key = (self.history.config.get(name) for name in ("seed", "key"))
        if seed is None and key:
            seed = key[-1] if list(key) == [0, key[-1]] * (len(key) // 2) else None
        return f"seed {seed}" if seed is not None else f"key {self.seed}"

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
    known = run.history.accuracies
    if evaluation is None or next(iter(known), None) == evaluation:
        return run
    if evaluation not in known:
        raise ValueError(
            f"evaluation={evaluation!r}: {run.folder} has {', '.join(known) or 'none'}; choose one that all runs have, "
            "or run it with --evaluations"
        )
    without_models = {
        "server_state": None,
        "client_states": None,
    }  # else `replace` would read them
    return of(
        replace(
            run.history,
            accuracies={evaluation: known[evaluation], **known},
            **without_models,
        ),
        run.folder,
    )


def of(history: History, folder: Path) -> Run:
    """Return the run of a history in memory and its folder."""
    return Run(folder, history, _settings(history))


def why_no_accuracies(histories: Iterable[History]) -> str:
    """Return the end of an error message for runs without accuracies: the reason and the remedy."""
    evaluated = [
        history for history in histories if history.accuracies and len(history.eval_round)
    ]
    if names := sorted({history.score_name for history in evaluated}):
        drawn = "draw them with srp.plots.accuracy_over_time, or use History.to_frame"
        return f", but by {' and '.join(map(repr, names))}, where less is better; {drawn}"
    return "; run with evaluations (--evaluations, eval_every)"


def by_task(runs: Iterable[Run]) -> tuple[dict[str, list[Run]], list[Run]]:
    """Group runs by data set, number of clients and score, a table each; return also runs whose scores are errors."""
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
    """Return the runs without bit-identical copies, and the copies, each with the run that it equals."""
    kept: dict[Any, list[Run]] = {}
    copies = []
    for run in runs:
        same_settings = kept.setdefault(
            (run.history.name, frozenset(run.settings.items()), run.seed), []
        )
        same = next(
            (
                other
                for other in same_settings
                if _same_results(run.history, other.history)
            ),
            None,
        )
        if same is None:
            same_settings.append(run)
        else:
            copies.append((run, same))
    return [run for of_seed in kept.values() for run in of_seed], copies


def rows(runs: Sequence[Run]) -> Rows:
    """Return the rows of a table, in the order of the methods, then of the values that differ."""
    found, notes = _group(runs)
    differing = _differing_options(found)
    position_of = {name: position for position, name in enumerate(methods.names())}
    found.sort(
        key=lambda row: (
            position_of.get(row.method, len(position_of)),
            row.method,
            _sort_key(row, differing),
        )
    )
    shown, paths = (
        _named_options(found, differing),
        {path for row in found for path in row.settings},
    )
    names = [
        _row_name(row, of_row, paths) for row, of_row in zip(found, shown, strict=True)
    ]
    for i in [
        i for i, name in enumerate(names) if names.count(name) > 1
    ]:  # they differ in the place in a list
        names[i] += (
            f" ({', '.join('.'.join(path[1:]) for path in shown[i] if path != _without_indices(path))})"
        )
    named = [*zip(names, found, strict=True)]
    if held_out := [
        name for name, row in named if row.runs[0].history.judged_on == "validation"
    ]:
        which = (
            "all rows"
            if len(held_out) == len(found)
            else "; ".join(map(table.named, held_out))
        )
        notes.append(
            f"judged by training data that were held out, not by test data: {which}"
        )
    trainings: dict[Any, list[str]] = {}
    for name, row in named:
        trained = frozenset(
            (path, text)
            for path, text in row.settings.items()
            if path[-1] != "evaluation"
        )
        trainings.setdefault((row.runs[0].history.host_seconds, trained), []).append(
            table.named(name)
        )
    known = (
        judged for (seconds, _), judged in trainings.items() if seconds == seconds
    )  # not nan
    if shared := [" and ".join(judged) for judged in known if len(judged) > 1]:
        notes.append(
            f"rows of one training, each with all of its seconds: {'; '.join(shared)}"
        )
    twins = {name: _find_twin(row, found, names) for name, row in named}
    options = {
        name: {
            _option_prefix(path, paths).rstrip("= "): row.settings[path]
            for path in of_row
        }
        for (name, row), of_row in zip(named, shown, strict=True)
    }
    runs_of = {name: row.runs for name, row in named}
    return Rows(
        runs_of,
        {name: twin for name, twin in twins.items() if twin is not None},
        options,
        notes,
    )


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
        section, option = path[0], path[-1].rpartition(".")[2]
        if option != path[-1] and settings[path] == settings.get((section, option)):
            del settings[
                path
            ]  # an option of a second optimizer, equal to that of the training optimizer
    for part in ("algorithm", "participation"):
        for (*within, last), text in _flatten(
            (history.config.get("method") or {}).get(part, {})
        ):
            is_own = last == PART and not within and "." in text
            if (
                last == CODE
                or is_own
                or (last == PART and within and within != ["model"])
            ):
                settings["options", ".".join(within) or part, last] = (
                    text  # e.g. the class of an optimizer
                )
    return settings | {("evaluation",): str(history.evaluation)}


def _flatten(
    options: Mapping[str, Any], before: OptionPath = ()
) -> Iterator[tuple[OptionPath, str]]:
    for name, value in options.items():
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            yield from _flatten(
                {str(index): entry for index, entry in enumerate(value)}, (*before, name)
            )
        elif isinstance(value, Mapping):
            yield from _flatten(value, (*before, name))
        else:
            is_ours = name == PART and str(value).startswith(
                _PACKAGE
            )  # the user's parts keep their module
            yield (
                (*before, name),
                str(value).rpartition(".")[2] if is_ours else _as_text(value),
            )


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
    return str(single) if float(single) == value else str(value)


def _group(runs: Sequence[Run]) -> tuple[list[_Row], list[str]]:
    """Group runs of equal settings into rows, with notes; a row per folder if equal seeds gave unequal results."""
    groups: dict[Any, list[Run]] = {}
    for run in sorted(
        runs,
        key=lambda run: (
            run.history.name,
            sorted(run.settings.items()),
            run.seed,
            run.folder,
        ),
    ):
        groups.setdefault((run.history.name, frozenset(run.settings.items())), []).append(
            run
        )
    of_data: dict[
        str, Settings
    ] = {}  # checksum of data -> options of the first run on them
    found: list[_Row] = []
    doubtful: dict[str, list[str]] = {"averaged": [], "separate": []}
    for group in groups.values():
        method, settings = group[0].history.name, group[0].settings
        if _DATA in settings:
            data = dict(
                _flatten(
                    {
                        "dataset_options": group[0].history.config.get("dataset_options")
                        or {}
                    }
                )
            )
            settings = {**settings, **of_data.setdefault(settings[_DATA], data)}
        parts = list(dict.fromkeys(part for run in group for part in run.unknown))
        if _are_repeats(group):
            found.append(_Row(method, settings, group))
            doubtful["averaged"] += parts if len(group) > 1 else []
            continue
        doubtful["separate"] += parts
        common = os.path.commonpath([run.folder for run in group])
        names = [os.path.relpath(run.folder, common) for run in group]
        found += [
            _Row(method, {**settings, ("folder",): name}, [run])
            for name, run in zip(names, group, strict=True)
        ]
    remedy = "make it of numbers, texts, named functions and parts (srp.part)"
    why = {
        "averaged": "repeats may differ in more than the seed:",
        "separate": "one row per folder: runs with equal seeds differ, and",
    }
    parts = {
        how: ", ".join(sorted({*of_rows})) for how, of_rows in doubtful.items() if of_rows
    }
    return found, [
        f"{why[how]} the definition of {names} is not recorded; {remedy}"
        for how, names in parts.items()
    ]


def _are_repeats(group: Sequence[Run]) -> bool:
    """True if all seeds differ, False if equal seeds gave unequal results; ValueError for the same run twice."""
    of_seed: dict[str, list[Run]] = {}
    for run in group:
        for other in of_seed.setdefault(run.seed, []):
            is_copy = _same_results(run.history, other.history)
            if not run.unknown or is_copy:
                both = (
                    ""
                    if is_copy
                    else ", or draw both: srp.plots.accuracy_over_time({'old': ..., 'new': ...})"
                )
                raise ValueError(
                    f"{other.folder} and {run.folder} hold the same run, {run.history.name} with {run.called}, with "
                    f"{'equal' if is_copy else 'other'} results; remove one of them{both}"
                )
        of_seed[run.seed].append(run)
    return len(of_seed) == len(group)


def _same_results(one: History, other: History) -> bool:
    return np.array_equal(one.compute_time, other.compute_time) and np.array_equal(
        one.accuracy, other.accuracy, equal_nan=True
    )


def _differing_options(found: Sequence[_Row]) -> list[OptionPath]:
    """Return the options that differ between rows; method-specific ones only if they differ within a method."""
    differing: dict[OptionPath, None] = {}
    for path in dict.fromkeys(path for row in found for path in row.settings):
        having = [row for row in found if path in row.settings]
        lacking = {row.method for row in found if path not in row.settings}
        if "." in path[-1] and not lacking.isdisjoint(
            row.method for row in having
        ):  # an option of an optional part
            differing[path] = None
        values = {
            (row.method if path in _METHOD_SPECIFIC else "", row.settings[path])
            for row in having
        }
        groups = {row.method if path in _METHOD_SPECIFIC else "" for row in having}
        is_code = _is_code(path) or path[:2] in _CUSTOM_CLASSES
        is_last_resort = (
            path == _DATA or is_code or path != _without_indices(path)
        )  # see `_named_options`
        if len(values) > len(groups) and not is_last_resort:
            differing[path] = None
    return list(differing)


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
    found: Sequence[_Row], differing: Sequence[OptionPath]
) -> list[list[OptionPath]]:
    """Return the options that name each row: the differing ones, and as many more as make its name unique."""
    paths = {path for row in found for path in row.settings}
    shown = [
        [path for path in differing if row.settings.get(path, "None") != "None"]
        for row in found
    ]
    names = [
        _row_name(row, of_row, paths) for row, of_row in zip(found, shown, strict=True)
    ]
    result = []
    for row, of_row, name in zip(found, shown, names, strict=True):
        namesakes, more = (
            [other for other, same in zip(found, names, strict=True) if same == name],
            [],
        )
        for path in sorted(row.settings, key=_is_code):
            left = [
                other
                for other in namesakes
                if other.settings.get(path) == row.settings[path]
            ]
            if len(left) < len(namesakes):
                more.append(path)
                namesakes = left
        result.append([*of_row, *more])
    return result


def _row_name(row: _Row, shown: Sequence[OptionPath], paths: set[OptionPath]) -> str:
    words = []
    for path in shown:
        text = row.settings[path]
        short = (
            text
            if len(text) <= _MAX_LETTERS
            else f"{text[: _MAX_LETTERS - 12]}...{zlib.crc32(text.encode()):08x}"
        )
        words.append(_option_prefix(path, paths) + short)
    return ", ".join([methods.label(row.method), *words]) if words else row.method


def _option_prefix(path: OptionPath, paths: set[OptionPath]) -> str:
    """Return the shortest unique name of an option, and "=" or a blank, to put before its value."""
    if path == _DATA:
        return "data "
    if path == ("dataset_options", "seed"):
        return "partition_seed="
    words, plain = (
        _without_class_key(path),
        {_without_class_key(other) for other in paths},
    )
    namesakes = [
        sum(other[-n:] == words[-n:] for other in plain) for n in range(1, len(words))
    ]
    fewest = namesakes.index(1) + 1 if 1 in namesakes else len(words)
    if fewest == len(words):  # method.alpha, as on the command line, and data.alpha
        return f"{'.'.join((_SECTIONS.get(words[0], words[0]), *words[1:]))}="
    return (
        f"{'clock.' if words[0] == 'clock_options' else ''}{'.'.join(words[-fewest:])}="
    )


def _without_class_key(path: OptionPath) -> OptionPath:
    """Return the path of a part from that of its class name, without indices of lists."""
    path = _without_indices(path)
    return path[:-1] if path[-1] in ("name", *_CLASS_KEYS) and len(path) > 2 else path


def _without_indices(path: OptionPath) -> OptionPath:
    return tuple(word for word in path if not word.isdecimal())


def _is_code(path: OptionPath) -> bool:
    return path[-1].endswith(CODE)


def distinguishing_suffix(value: Any, others: Sequence[Any]) -> str:
    """Return the fields, in brackets, that distinguish an object from others of its name; None values are left out.

    A class has its module in front if the others have a class of that name; its code is named last, and only if needed.
    """
    own, *rest = [dict(_flatten({"": {"": describe(each)}})) for each in (value, *others)]
    fields: dict[str, dict[str, None]] = {}
    distinguished: set[int] = (
        set()
    )  # indices of the others that differ in a field found so far
    for path, text in sorted(own.items(), key=lambda entry: _is_code(entry[0])):
        is_class = path[-1] in _CLASS_KEYS
        differs = [
            text not in each.values() if is_class else each.get(path) != text
            for each in rest
        ]
        if (
            text == "None"
            or not any(differs)
            or (_is_code(path) and distinguished.issuperset(np.flatnonzero(differs)))
        ):
            continue
        short = text.rpartition(".")[2]
        is_unique = not any(
            short == str(each.get(path)).rpartition(".")[2] for each in rest
        )
        word = short if is_class and is_unique else text
        fields.setdefault(_without_class_key(path)[-1], {})[word] = None
        distinguished |= {*np.flatnonzero(differs).tolist()}
    words = ", ".join(
        f"{name}={'+'.join(texts)}" if name else "+".join(texts)
        for name, texts in fields.items()
    )
    return f"({words})" if words else ""


def _find_twin(row: _Row, found: Sequence[_Row], names: Sequence[str]) -> str | None:
    """Return the row of the same algorithm without doubling and with equal options; its length may differ.

    The time to a target does not depend on rounds after it. A row of equal length is preferred, then the longest.
    """
    recipe = methods.RECIPES.get(row.method)
    base, _, policy = row.method.partition(" + ")
    wanted = recipe.twin if recipe is not None else base if policy == "doubling" else None
    for left_out, order in ((_METHOD_SPECIFIC, 1), ((*_METHOD_SPECIFIC, *_LIMITS), -1)):
        for other, name in [*zip(found, names, strict=True)][::order]:
            # an option that is None for the twin may be missing here, such as the pool of a policy
            shared = {
                path: text
                for path, text in other.settings.items()
                if path not in left_out
            }
            if other.method == wanted and all(
                row.settings.get(path, "None") == shared[path] for path in shared
            ):
                return name
    return None
