"""`fedjax-srp report`: table and figure of the run folders below a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_srp import methods
from fedjax_srp.history import History
from fedjax_srp.report import table
from fedjax_srp.report.panels import figure
from fedjax_srp.report.run_folder import writable

# What is recorded and sets no repeats apart: the row, the seed, and what changes no result.
_ROW = ("name", "algorithm", "method", "methods", "participation", "training", "title")
_SEED = ("seed", "seeds", "num_seeds", "key")
_NO_EFFECT = ("communication", "chunk_size", "devices", "num_devices", "device", "shard_data")


class _Run(NamedTuple):
    """A run folder."""

    folder: Path
    history: History
    options: dict[str, Any]  # what made it, but for the seed


def report(folder: str, target: float | None, communications: Sequence[float], out: str | None) -> str:
    """One table and one figure for every data set and number of clients among the runs.

    Runs that differ in nothing but the seed are the repeats of a row. Where they differ in more, say in the learning
    rate, there is a row for each value, which stands beside the name of the method.

    Args:
        folder: run folders are looked for in it and below.
        target: mean accuracy to time; None for 95 % of FedRep's final accuracy, of the best method's without FedRep.
        communications: costs per communicating round, in time units.
        out: where to write; None for `folder`.

    Raises:
        ValueError: no finished runs there, the same run twice, or a target that is no accuracy.
    """
    table.check_target(target)
    found = sorted(path.parent for path in Path(folder).rglob("summary.json"))
    if not found:
        raise ValueError(f"folder={folder!r}: holds no finished run; give a folder that fedjax-srp run or demo wrote")
    tasks: dict[str, list[_Run]] = {}
    order = {name: place for place, name in enumerate(methods.names())}
    for run in sorted(map(_read, found), key=lambda run: order.get(run.history.name, len(order))):
        task = f"{run.history.config.get('dataset', 'data')}_{run.history.num_clients}_clients"
        tasks.setdefault(task, []).append(run)
    place, texts = writable(out or folder), []
    for task, runs in tasks.items():
        suffix = "" if len(tasks) == 1 else f"_{task.replace('/', '_')}"
        if evaluated := [run for run in runs if len(run.history.eval_round)]:
            texts.append(_compare(task, evaluated, target, communications, place, suffix))
    if not texts:
        raise ValueError(f"folder={folder!r}: none of its runs was evaluated; run with --evaluations")
    left_out = [path.parents[1] for path in Path(folder).rglob("checkpoint/arguments.json")]
    if left_out := sorted(str(run) for run in left_out if run not in found):
        texts.append(f"left out, not finished: {', '.join(left_out)}")
    return "\n\n".join(texts)


def _compare(
    task: str, runs: list[_Run], target: float | None, communications: Sequence[float], place: Path, suffix: str
) -> str:
    """Writes table and figure of one task; returns the text."""
    histories, twins = _rows(runs)
    aim = table.common_target(histories) if target is None else table.Target(target, "as asked")
    frame = table.comparison(histories, aim.accuracy, communications, twins)
    title = task.replace("_", " ")
    frame.to_csv(place / f"table{suffix}.csv", index=False)
    text = table.render(frame, aim)
    (place / f"table{suffix}.txt").write_text(text + "\n", "utf-8")
    figure(histories, aim, communications, title).savefig(place / f"accuracy{suffix}.png", dpi=150)
    return f"{title}\n\n{text}\n\nwritten to {place}: table{suffix}.txt, table{suffix}.csv, accuracy{suffix}.png"


def _rows(runs: list[_Run]) -> tuple[dict[str, list[History]], dict[str, str]]:
    """Row -> its repeats, and row -> the row of the same algorithm without doubling.

    Raises:
        ValueError: two folders hold the same run.
    """
    differing = _differing([run.options for run in runs])
    rows: dict[str, list[History]] = {}
    twins: dict[str, str] = {}
    folders: dict[tuple[str, str], Path] = {}
    for run in runs:
        row, seed = _row(run.history.name, run.options, differing), _seed(run.history)
        first = folders.setdefault((row, seed or str(run.folder)), run.folder)
        if first != run.folder:
            raise ValueError(f"{first} and {run.folder} hold the same run, {row} with seed {seed}; remove one of them")
        rows.setdefault(row, []).append(run.history)
        recipe = methods.RECIPES.get(run.history.name)
        if recipe is not None and recipe.twin is not None:
            twins[row] = _row(recipe.twin, run.options, differing)
    return rows, twins


def _row(method: str, options: Mapping[str, Any], differing: Sequence[str]) -> str:
    """A method's name, and those of the differing options that it has and reads."""
    unread = methods.without_effect(method) if method in methods.RECIPES else []
    values = [f"{option}={options[option]}" for option in differing if option in options and option not in unread]
    return ", ".join([methods.label(method), *values]) if values else method


def _differing(made_with: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options that differ among those runs of one command that have them, and the command where it does."""
    by_command: dict[str, list[Mapping[str, Any]]] = {}
    for options in made_with:
        by_command.setdefault(options["command"], []).append(options)
    differing = {"command": None} if len(by_command) > 1 else {}
    for group in by_command.values():
        for option in dict.fromkeys(name for options in group for name in options):
            if len({repr(options[option]) for options in group if option in options}) > 1:
                differing[option] = None
    return list(differing)


def _read(folder: Path) -> _Run:
    history = History.load(folder)
    recorded = {"command": "python"} | _flat(history.config.get("arguments") or history.config)
    options = {name: value for name, value in recorded.items() if name not in (*_ROW, *_SEED, *_NO_EFFECT)}
    return _Run(folder, history, options)


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat


def _seed(history: History) -> str | None:
    seed = history.config.get("seed", history.config.get("key"))
    return None if seed is None else str(seed)
