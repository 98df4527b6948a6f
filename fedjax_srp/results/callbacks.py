"""Callbacks of `simulate`: the `Progress` passed to them after every evaluation, and callbacks that log it.

    srp.simulate(..., callback=srp.watch.json_lines("run.jsonl"))
    srp.simulate(..., callback=lambda progress: progress.metrics["training_loss"] < 0.1, record_loss=True)

Any function of a `Progress` is a callback; it ends the run by returning True or raising
`StopIteration`. If there are several processes, each calls it, and all answers must be
the same; the callbacks here write in the first process only.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_srp.base import PyTree
from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.columns import LOG_COLUMNS
from fedjax_srp.parts.libraries import MissingLibraryError, needed_by
from fedjax_srp.results import errors
from fedjax_srp.results.history import History
from fedjax_srp.results.json_files import jsonable


class Progress(NamedTuple):
    """State of a run after an evaluation.

    Under `simulate_seeds`, numbers are arrays (num_seeds,).

    Attributes:
        name: of the run.
        seeds: indices of the keys of `simulate_seeds` that run together; None in
            `simulate`.
        round: number of completed rounds.
        num_rounds: maximal number of rounds.
        elapsed: simulated time, in time units, without communication.
        scores: evaluation -> mean over clients weighted by test points, as
            `History.mean_scores`.
        metrics: metric -> value of the last round.
        rows: one for each round since the last call, and each seed: numbers by the names
            of `history.csv`, and `run`, eight digits that identify parts, data and key
            (missing if its program has no hash, as one that calls the host); the last row of
            a seed has the scores as `accuracy_<evaluation>`.
        server_state: returns a NumPy copy of the server's state, (num_seeds, ...) for
            several seeds; call it within the callback only.
        history: returns a `History` of the run so far, a list for several seeds; call it
            within the callback only.
    """

    name: str
    seeds: range | None
    round: int
    num_rounds: int
    elapsed: float | np.ndarray
    scores: Mapping[str, float | np.ndarray]
    metrics: Mapping[str, float | np.ndarray]
    rows: list[dict[str, Any]]
    server_state: Callable[[], PyTree]
    history: Callable[[], History | list[History]]


Callback = Callable[[Progress], object]  # True ends the run


def ends(callback: Callback, progress: Progress) -> bool:
    """Call a callback; return True if the run should end."""
    try:
        answer = callback(progress)
    except StopIteration:
        return True
    if not isinstance(answer, bool | np.bool_ | np.ndarray | jax.Array):
        return False
    flag = np.asarray(answer)
    return flag.dtype == bool and bool(flag)  # NumPy refuses several flags


def all_of(*callbacks: Callback) -> Callback:
    """Combine callbacks; the run ends when one of them ends it."""

    def call(progress: Progress) -> bool:
        answers = [ends(callback, progress) for callback in callbacks]
        return any(answers)

    return call


def _in_first_process(write: Callback) -> Callback:
    def call(progress: Progress) -> None:
        if jax.process_index() == 0:
            write(progress)

    return call


@checked
def json_lines(path: str | os.PathLike) -> Callback:
    """Append a line of JSON to a file for each of `Progress.rows`.

    A round that is already in the file is written again only if it has new columns, so a
    resumed or extended run has each of its rounds once. A truncated last line is removed.
    Numbers that are not finite are strings, as in `summary.json`.

    Args:
        path: of the file; its folder is created if missing.

    Raises:
        ValueError: the file has other content, or cannot be written to.
    """
    file = Path(path).absolute()  # of now, wherever a callback is called
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
        *lines, partial = file.read_text("utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, UnicodeError):
            reason = "it is not text"
        raise ValueError(
            f"log={os.fspath(path)!r}: {reason}; give another file"
        ) from None
    rows = list(itertools.takewhile(_is_row, lines))
    is_begun = partial.startswith('{"name": '[: len(partial)])
    if len(rows) < len(lines) or not is_begun:
        raise ValueError(
            f"log={os.fspath(path)!r}: line {len(rows) + 1} is not a row of a run; give "
            "another file"
        )
    columns_of: dict[Any, set[str]] = {}  # identity of a row -> its columns

    def is_new(row: Mapping[str, Any], line: str) -> bool:
        identity: Any = line
        if "run" in row:
            identity = row["run"], row["name"], row.get("seed"), row["round"]
        columns = columns_of.setdefault(identity, set())
        has_more = not columns.issuperset(row)
        columns.update(row)
        return has_more

    for line in lines:
        is_new(json.loads(line), line)

    def write(progress: Progress) -> None:
        nonlocal partial
        new = []
        for row in progress.rows:
            line = json.dumps(jsonable(row))
            if is_new(row, line):
                new.append(f"{line}\n")
        with errors.writing(file):
            if partial:
                os.truncate(file, file.stat().st_size - len(partial.encode()))
                partial = ""
            with file.open("a", encoding="utf-8", newline="\n") as stream:
                stream.writelines(new)

    return _in_first_process(write)


def _is_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and "name" in row and "round" in row


def _scalars(row: Mapping[str, Any]) -> dict[str, float]:
    prefix = f"seed_{row['seed']}/" if "seed" in row else ""
    scalars = {}
    for name, value in row.items():
        if name not in (*LOG_COLUMNS, "round"):
            scalars[prefix + name] = float(value)
    return scalars


def tensorboard(directory: str | os.PathLike, writer: Any = None) -> Callback:
    """Write scalars of each round for TensorBoard; names of seed s begin with `seed_s/`.

    Args:
        directory: of the event files.
        writer: an object with `add_scalar(name, value, round)` and `flush()`; None for
            the `SummaryWriter` of tensorboardX or, if that is not installed, of torch.
    """
    is_first = jax.process_index() == 0
    events: Any = summary_writer(directory) if writer is None and is_first else writer

    def write(progress: Progress) -> None:
        for row in progress.rows:
            for name, value in _scalars(row).items():
                events.add_scalar(name, value, row["round"])
        events.flush()

    return _in_first_process(write)


def summary_writer(directory: str | os.PathLike, **options: Any) -> Any:
    """Return a `SummaryWriter` of tensorboardX or torch.

    MissingLibraryError if neither is installed.
    """
    folder = os.fspath(directory)
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            return importlib.import_module(module).SummaryWriter(folder, **options)
        except ImportError:
            continue
    raise MissingLibraryError(
        f"tensorboard={folder!r}: no writer of event files is installed; pip install "
        "tensorboardX"
    )


def wandb_run(**options: Any) -> Any:
    """Return the result of `wandb.init(...)`; MissingLibraryError if wandb is not installed."""
    with needed_by("wandb", "wandb, or log to a file with json_lines"):
        library = importlib.import_module("wandb")
    return library.init(**options)


def wandb(run: Any = None, **options: Any) -> Callback:
    """Log scalars of each round to Weights & Biases, with `round` as x axis.

    Names of seed s begin with `seed_s/`.

    Args:
        run: result of `wandb.init(...)`, which the caller finishes; None to call it with
            the options.
        **options: of `wandb.init`, e.g. project, name, config, or id and resume for a
            resumed run.
    """
    is_first = jax.process_index() == 0
    logger: Any = wandb_run(**options) if run is None and is_first else run
    is_defined = False

    def write(progress: Progress) -> None:
        nonlocal is_defined
        # steps of wandb may not decrease, but rounds do from one batch of seeds to the next
        if not is_defined:
            logger.define_metric("round")
            logger.define_metric("*", step_metric="round")
            is_defined = True
        by_round: dict[int, dict[str, float]] = {}
        for row in progress.rows:
            scalars = by_round.setdefault(row["round"], {"round": row["round"]})
            scalars.update(_scalars(row))
        for scalars in by_round.values():
            logger.log(scalars)

    return _in_first_process(write)
