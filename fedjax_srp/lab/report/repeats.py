"""Rows of a table: runs of equal records but for the key are repeats of one row.

A record, `History.config`, is flattened to paths and texts. Rows are named by their method and by
the paths in which their records differ, each by its shortest unique end.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp import methods
from fedjax_srp.lab.report import fairness, table
from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.description import DATACLASS, FUNCTION, PART, describe
from fedjax_srp.results.history import History
from fedjax_srp.results.records import (
    LIMITS,
    MACHINE,
    MODEL,
    PROGRAM,
    UNKNOWN,
    VERSION,
    WORDS,
    without,
)

OptionPath = tuple[str, ...]  # the keys of a fact, from the top of a record
Settings = Mapping[OptionPath, str]  # path -> text; equal values have equal texts

_LEFT_OUT = (
    *("key", MACHINE, VERSION, MODEL, WORDS, PROGRAM, "record_loss"),
    "evaluations",  # except for the default one, which is compared
    "data.options",  # data have a checksum
    *("method.name", "data.name", "data.num_clients"),  # compared before
)
_EVALUATION = ("evaluation",)
_ALGORITHM = ("method", "algorithm")
_PARTICIPATION = ("method", "participation")
_METHOD_SPECIFIC = (  # compared only between runs of one method
    *(_ALGORITHM, _PARTICIPATION, _EVALUATION),
    (*_ALGORITHM, "evaluation"),
    (*_ALGORITHM, "model", "cut"),
)
_LIMITS = tuple(("schedule", name) for name in LIMITS)
_DATA = ("data", "checksum")
_PROGRAM = (PROGRAM,)
_LAST_RESORTS = (_DATA, _PROGRAM)  # name rows only if nothing else does
# as on the command line
_CALLED = {_DATA: "data", ("data", "options", "seed"): "partition_seed"}
_MAX_LETTERS = 40  # of a value in the name of a row; longer ones are cut
_PACKAGE = "fedjax_srp."
_CLASS_KEYS = (PART, DATACLASS, FUNCTION)  # keys of class names in a description


class Run(NamedTuple):
    """A run and its settings."""

    folder: Path
    history: History
    settings: Settings

    @property
    def seed(self) -> str:
        """The recorded key; the folder if there is none."""
        return str(self.history.config.get("key", self.folder))

    @property
    def called(self) -> str:
        """Label of the seed: "seed n" for `jax.random.key(n)`, the whole key otherwise."""
        key = self.history.config.get("key")
        if key and list(key) == [0, key[-1]] * (len(key) // 2):
            return f"seed {key[-1]}"
        return f"key {self.seed}"

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the run's own code if its program is unknown."""
        program = self.history.config.get(PROGRAM) or {}
        return tuple(program.get("code", ())) if UNKNOWN in program else ()


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
    history = run.history
    if evaluation is None or history.evaluation == evaluation:
        return run
    if evaluation not in history.accuracies:
        known = printable(", ".join(history.accuracies)) or "none"
        raise ValueError(
            f"evaluation={evaluation!r}: {str(run.folder)!r} has {known}; "
            "choose one that all runs have, or run it with --evaluations"
        )
    return of(history.judged_by(evaluation), run.folder)


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
        data = run.history.config.get("data") or {}
        task = f"{data.get('name', 'data')}_{run.history.num_clients}_clients"
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
    differing = _differing(groups)
    position_of = {name: position for position, name in enumerate(methods.names())}

    def order(row: _Row) -> tuple[int, str, list[tuple[int, float, str]]]:
        position = position_of.get(row.method, len(position_of))
        ranks = [_rank(row.settings.get(path)) for _, path in differing]
        return position, row.method, ranks

    groups.sort(key=order)
    options = [_named(row, groups, differing, _LAST_RESORTS) for row in groups]
    names = [_row_name(row, named) for row, named in zip(groups, options, strict=True)]
    row_of = {}
    options_of = {}
    for row, named, name in zip(groups, options, names, strict=True):
        if names.count(name) > 1:
            named = _named(row, groups, differing)
            name = _row_name(row, named)
        row_of[name] = row
        options_of[name] = named
    twins = {}
    for name, row in row_of.items():
        twin = _find_twin(row, row_of)
        if twin is not None:
            twins[name] = twin
    notes += _notes_on_validation(row_of)
    notes += _notes_on_shared_trainings(row_of)
    runs_of = {name: row.runs for name, row in row_of.items()}
    notes += fairness.notes_on_unsent_means(runs_of)
    notes += fairness.notes_on_fresh_updates(runs_of)
    return Rows(runs_of, twins, options_of, notes)


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
    """Return the facts in which runs of one row are equal."""
    settings = _distinct(_flatten(without(history.config, *_LEFT_OUT)))
    settings[_EVALUATION] = str(history.evaluation)
    program = history.config.get(PROGRAM) or {}
    hashes = [program.get(name) for name in ("rounds", "costs", history.evaluation)]
    if any(hashes):
        settings[_PROGRAM] = "-".join(filter(None, hashes))
    return settings


def _distinct(facts: Iterable[tuple[OptionPath, str]]) -> dict[OptionPath, str]:
    """Leave out facts that repeat one of the same last word, such as the step size of a second optimizer."""
    known: set[tuple[str, str]] = set()
    kept = {}
    for path, text in facts:
        fact = path[-1] if path else "", text
        if fact not in known:
            known.add(fact)
            kept[path] = text
    return kept


def _flatten(value: Any, path: OptionPath = ()) -> Iterator[tuple[OptionPath, str]]:
    """Yield the paths and texts of a description; a part has the path of its class, and null has none."""
    if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        value = {str(index): entry for index, entry in enumerate(value)}
    if isinstance(value, Mapping):
        for name, entry in value.items():
            within = path if name in _CLASS_KEYS else (*path, str(name))
            yield from _flatten(entry, within)
    elif value is not None:
        text = str(value)
        # users' parts keep their module
        yield path, text.rpartition(".")[2] if text.startswith(_PACKAGE) else text


def _group(runs: Sequence[Run]) -> tuple[list[_Row], list[str]]:
    """Group runs of equal settings into rows, with notes.

    If equal seeds gave unequal results, each run has a row of its own.
    """

    def order(run: Run) -> Any:
        return run.history.name, sorted(run.settings.items()), run.seed, run.folder

    groups: dict[Any, list[Run]] = {}
    for run in sorted(runs, key=order):
        groups.setdefault(_identity(run), []).append(run)
    are_recorded = all(_DATA in run.settings and _data_options(run) for run in runs)
    of_data: dict[str, Settings] = {}  # checksum -> options of the first run on the data
    table_rows: list[_Row] = []
    unknown_if_averaged: set[str] = set()
    unknown_if_separate: set[str] = set()
    for group in groups.values():
        method = group[0].history.name
        settings = group[0].settings
        if are_recorded:
            data = _data_options(group[0])
            recorded = dict(_flatten(data, ("data", "options")))
            settings = {**settings, **of_data.setdefault(settings[_DATA], recorded)}
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


def _data_options(run: Run) -> Any:
    return run.history.config["data"].get("options")


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
    same_times = one.start == other.start and np.array_equal(
        one.compute_time, other.compute_time
    )
    return same_times and np.array_equal(one.accuracy, other.accuracy, equal_nan=True)


def _scope(row: _Row, path: OptionPath) -> str:
    """Return the method for what is compared only between its runs."""
    return row.method if path[0] in ("method", *_EVALUATION) else ""


def _differing(table_rows: Sequence[_Row]) -> list[tuple[str, OptionPath]]:
    """Return the scopes and paths in which rows differ, or that some rows of a scope lack.

    Those of a method come first, so that the names of all methods' rows have one order.
    """
    texts: dict[tuple[str, OptionPath], list[str]] = {}
    for row in table_rows:
        for path, text in row.settings.items():
            texts.setdefault((_scope(row, path), path), []).append(text)
    num_rows = {**Counter(row.method for row in table_rows), "": len(table_rows)}
    differing = [
        (scope, path)
        for (scope, path), found in texts.items()
        if len({*found}) > 1 or len(found) < num_rows[scope]
    ]
    return sorted(differing, key=lambda fact: fact[0] == "")


def _rank(text: str | None) -> tuple[int, float, str]:
    """Return the sort key of a text: a missing one first, then numbers by size, then others."""
    if text is None:
        return 0, 0.0, ""
    try:
        return 1, float(text), text
    except ValueError:
        return 2, 0.0, text


def _named(
    row: _Row,
    table_rows: Iterable[_Row],
    differing: Iterable[tuple[str, OptionPath]],
    left_out: Sequence[OptionPath] = (),
) -> dict[str, str]:
    """Return name -> text of the facts in which a row differs, by the shortest unique ends of their paths."""
    paths = {
        path for each in table_rows if each.method == row.method for path in each.settings
    }
    named = {}
    for scope, path in differing:
        if scope not in ("", row.method) or path not in row.settings or path in left_out:
            continue
        length = 1
        while sum(other[-length:] == path[-length:] for other in paths) > 1:
            length += 1
        name = _CALLED.get(path, ".".join(path[-length:]))
        named[name] = row.settings[path]
    return named


def _row_name(row: _Row, named: Mapping[str, str]) -> str:
    if not named:
        return row.method
    words = [methods.label(row.method)]
    for name, text in named.items():
        if len(text) > _MAX_LETTERS:
            text = f"{text[: _MAX_LETTERS - 12]}...{zlib.crc32(text.encode()):08x}"
        words.append(f"{name}={text}")
    return ", ".join(words)


def distinguishing_suffix(value: Any, others: Sequence[Any]) -> str:
    """Return the fields, in brackets, that distinguish an object from others of its name."""
    fields_of_others = [_distinct(_flatten(describe(other))) for other in others]
    words = []
    for path, text in _distinct(_flatten(describe(value))).items():
        if any(other.get(path) != text for other in fields_of_others):
            words.append("=".join([*path[-1:], text]))
    return f"({', '.join(words)})" if words else ""


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
    for left_out in (_METHOD_SPECIFIC, (*_METHOD_SPECIFIC, *_LIMITS)):
        for name in reversed(candidates):
            if _agree(row, row_of[name], left_out):
                return name
    return None


def _agree(row: _Row, twin: _Row, left_out: Sequence[OptionPath]) -> bool:
    """Return True if two rows differ in their policies, and so in their programs, and in what is left out."""
    for path in {**row.settings, **twin.settings}:
        is_of_policy = path[:2] == _PARTICIPATION and path not in twin.settings
        if path in left_out or path == _PROGRAM or is_of_policy:
            continue
        if row.settings.get(path) != twin.settings.get(path):
            return False
    return True
