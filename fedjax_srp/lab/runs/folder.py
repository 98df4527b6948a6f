"""Execution of a run into its folder: an interrupted run is resumed, a finished one is not changed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_srp import methods
from fedjax_srp.base import GRADIENT_NORM
from fedjax_srp.driver.checkpoint import snapshots
from fedjax_srp.driver.round_log import COPIES
from fedjax_srp.driver.simulate import simulate
from fedjax_srp.lab.runs.run import Run
from fedjax_srp.parts.checks import is_ours, printable
from fedjax_srp.results import atomic, json_files
from fedjax_srp.results import callbacks as watch
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.folder import ARGUMENTS, CHECKPOINT, CONFIG, MODELS
from fedjax_srp.results.history import History
from fedjax_srp.results.locks import held
from fedjax_srp.results.records import (
    MODEL,
    PROGRAM,
    STRUCTURE,
    UNKNOWN,
    VERSION,
    WORDS,
    identity,
)
from fedjax_srp.results.sealed_folders import is_foreign

# begins the names of such folders while a run overwrites another
_OVERWRITING = "overwriting_"


def _print(line: str) -> None:
    print(printable(line, kept="\n"), flush=True)


def execute(
    run: Run,
    folder: Path,
    *,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = _print,
    callback: watch.Callback | None = None,
) -> None:
    """Simulate a run into a folder, or resume it; a finished one is not changed.

    With `overwrite` it runs again, and the folder keeps its content until the new run is finished.

    Raises:
        ValueError: an argument is out of range, or the folder holds another run, is not writable, or is in use by
            another process.
        OSError: the disk is full.
    """
    state = _inspect(folder, run, overwrite)
    if state.finished and not state.needs_new_summary:
        tidy(folder)
        _report_finished(folder, run, state, say)
        return
    arguments: dict[str, Any] = {}
    # before it is locked, so that a failed start creates no folder
    if not state.finished:
        arguments = run.simulation()
    with held(atomic.writable(folder), "out"):
        run_folder.settle(folder)
        state = _inspect(folder, run, overwrite)  # another process may have used it
        if state.finished:
            _report_finished(folder, run, state, say)
            return
        with_models = run.models
        if state.has_checkpoint:
            with_models |= run_folder.has_models(folder)
        checkpoint_dir = None
        if run.checkpoint:
            checkpoint_dir = state.checkpoints
            _begin_checkpoints(folder, run, state, say)
        try:
            history = simulate(
                **arguments,
                progress=progress,
                checkpoint_dir=checkpoint_dir,
                keep_clients=with_models,
                callback=callback,
            )
        except ValueError as error:
            is_refused = is_ours(error) and not isinstance(error, DamagedError)
            if (
                checkpoint_dir is not None
                and is_refused
                and not snapshots(checkpoint_dir)
            ):
                # there is nothing to resume
                (checkpoint_dir / ARGUMENTS).unlink(missing_ok=True)
            raise
        if checkpoint_dir is not None:
            json_files.write_json(checkpoint_dir / ARGUMENTS, run.record)
        # before the figure is drawn
        say(outcome(history, run.settings.target, run.communication))
        save(history, folder, run, with_models)
        _clean_up(folder, checkpoint_dir)
    written = f"written to {folder}: {_size(folder)}"
    if run.checkpoint:
        size = _size(folder / CHECKPOINT)
        written += f", {size} of it a checkpoint, to make the run longer"
    say(written)


def _begin_checkpoints(
    folder: Path, run: Run, state: _FolderState, say: Callable[[str], None]
) -> None:
    atomic.writable(state.checkpoints)
    if state.has_checkpoint:  # `simulate` may still refuse to go on
        say(f"continuing the run in {folder}")
    else:
        json_files.write_json(state.checkpoints / ARGUMENTS, run.record)


def _report_finished(
    folder: Path, run: Run, state: _FolderState, say: Callable[[str], None]
) -> None:
    """Print the result of a finished run; rewrite its summary for another communication cost."""
    history = History.load(folder)
    cost = run.communication
    text = outcome(history, run.settings.target, cost)
    news = "--overwrite runs it again"
    if state.needs_new_summary:
        news = f"its summary and figure are now those of communication={cost:g}"
        # of the loaded history itself, so that models stay in the folder
        run_folder.write(history, folder, run.settings.target, cost, models=False)
    say(f"{folder} holds this run already, finished; {news}")
    for line in _doubts(history.config, run.record):
        say(line)
    say(text)


def _doubts(known: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each reason why a finished run might not equal a new one of the same record."""
    ours, theirs = record[VERSION], known.get(VERSION) or {}
    program = record[PROGRAM] or {}
    for name in ours:
        if ours[name] != theirs.get(name):
            unseen = "; own code is not compared" if program else ""
            yield (
                f"it was made with {name} {theirs.get(name)}, this is {ours[name]}{unseen}"
            )
    if UNKNOWN in program:
        yield (
            f"changes of own code are not seen, since of its program {program[UNKNOWN]}"
        )


def save(history: History, folder: Path, run: Run, models: bool) -> None:
    """Write the folder of a run with its record."""
    asked = {name: run.record.get(name) for name in (MODEL, PROGRAM, WORDS)}
    history = dataclasses.replace(history, config={**history.config, **asked})
    run_folder.write(history, folder, run.settings.target, run.communication, models)


def _is_checkpoint_folder(folder: Path) -> bool:
    """Return True if a folder is missing, empty, or has checkpoints of a run, even damaged ones."""
    record = folder / ARGUMENTS
    is_of_run = json_files.has_checksum(record) or any(
        not is_foreign(folder / str(n)) for n in snapshots(folder)
    )
    if is_of_run or not folder.is_dir():
        return is_of_run or not folder.exists()
    return all(map(_is_of_killed_run, folder.iterdir()))


def _is_of_killed_run(path: Path) -> bool:
    """Return True for what a run that was killed before its first snapshot leaves in a folder of checkpoints."""
    if path.name.startswith("."):
        return path.is_file() or path.suffix in (".writing", ".gone")
    # by a loss of power
    is_emptied = path.name == ARGUMENTS and path.is_file() and not path.stat().st_size
    return is_emptied or path.name in COPIES


class _FolderState(NamedTuple):
    checkpoints: Path
    finished: bool = False
    has_checkpoint: bool = False
    # it is finished, with a summary for another communication cost
    needs_new_summary: bool = False


def overwriting(folder: Path, run: Run) -> Path:
    """The folder of a run's checkpoints while it overwrites another run in `folder`."""
    asked = json.dumps(identity(run.record), sort_keys=True)
    return folder / f"{_OVERWRITING}{zlib.crc32(asked.encode()):08x}"


def _inspect(folder: Path, run: Run, overwrite: bool) -> _FolderState:
    """Return the state of this run in a folder; refuse folders of other runs, and losses of results."""
    record = run.record
    others = [] if _is_checkpoint_folder(folder / CHECKPOINT) else [CHECKPOINT]
    if run.models and is_foreign(folder / MODELS):
        others.append(MODELS)
    if others:
        raise ValueError(
            f"out={str(folder)!r}: its {others[0]} was not written by fedjax_srp; give another --out"
        )
    if overwrite:
        checkpoints = overwriting(folder, run)
        return _FolderState(checkpoints, has_checkpoint=bool(snapshots(checkpoints)))
    checkpoints = folder / CHECKPOINT
    finished, has_checkpoint = (
        run_folder.is_finished(folder),
        bool(snapshots(checkpoints)),
    )
    other, out = "give another --out, or --overwrite", f"out={str(folder)!r}"
    try:
        if finished or (not has_checkpoint and (folder / CONFIG).exists()):
            known = run_folder.read_config(folder)
        else:
            known = _asked(checkpoints) if has_checkpoint else record
    except DamagedError as error:
        if has_checkpoint:
            # checkpoints have a fingerprint of their run
            return _FolderState(checkpoints, has_checkpoint=True)
        raise ValueError(f"{out}: {error}; {other}") from None
    if not (finished or has_checkpoint) and (name := run_folder.foreign(folder)):
        raise ValueError(f"{out}: its {name} was not written by fedjax_srp; {other}")
    for fact, (asked, had) in run.differing(known).items():
        differs = f"{printable(fact)}={had!r} where this one has {asked!r}"
        raise ValueError(f"{out}: holds another run, with {differs}; {other}")
    if not finished:
        return _FolderState(checkpoints, has_checkpoint=has_checkpoint)
    limits = run.other_limits(known)
    lacks_models = run.models and not run_folder.has_models(folder)
    if not limits and not lacks_models:
        is_other_cost = not run_folder.has_cost(folder, run.communication)
        is_needed = is_other_cost and jax.process_count() == 1
        return _FolderState(checkpoints, finished=True, needs_new_summary=is_needed)
    if not (has_checkpoint and run.checkpoint):
        has = (
            ", ".join(f"{name}={value}" for name, value in limits.items()) or "no models"
        )
        raise ValueError(
            f"{out}: holds this run with {has}, and no checkpoint to resume from; {other}"
        )
    return _FolderState(checkpoints, has_checkpoint=True)


def _asked(checkpoints: Path) -> dict[str, Any]:
    """Return the record of the run that has a folder of checkpoints; a DamagedError if it is none."""
    found = json_files.read_json(checkpoints / ARGUMENTS)
    if not json_files.has_structure(found, STRUCTURE):
        raise DamagedError(f"{ARGUMENTS} is not that of a run")
    return found


def _clean_up(folder: Path, kept: Path | None) -> None:
    """Remove all checkpoints except those of the finished run."""
    checkpoints = folder / CHECKPOINT
    if kept != checkpoints:
        atomic.remove(checkpoints)
        if kept is not None:
            kept.rename(checkpoints)
    for leftover in folder.glob(f"{_OVERWRITING}*"):
        if _is_checkpoint_folder(leftover):
            atomic.remove(leftover)
    atomic.clear(folder)


def tidy(folder: Path) -> None:
    """Finish what a killed process began in the folder of a finished run, unless another one writes there."""
    checkpoints = folder / CHECKPOINT
    places = (folder, checkpoints, *checkpoints.glob("seeds_*"))
    has_hidden = any(any(place.glob(".*")) for place in places)
    if jax.process_index() == 0 and has_hidden:
        with contextlib.suppress(OSError, ValueError), held(folder, "out", alone=True):
            run_folder.settle(folder)
            for place in places:
                atomic.clear(place)


def _size(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size < 1e9:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e9:.1f} GB"


def outcome(history: History, target: float | None, communication: float) -> str:
    """Describe a finished run in one line."""
    summary = history.summary(target, communication)
    words = [
        f"{methods.label(history.name)}: {history.num_rounds} rounds",
        f"simulated time {summary['simulated_time']:.4g} at communication cost {communication:g}",
    ]
    if summary["final_accuracy"] is not None:
        accuracy = 100 * summary["final_accuracy"]
        words.append(f"final accuracy {accuracy:.2f} % ({history.evaluation})")
        words.append(f"worst tenth of the clients {100 * summary['worst_decile']:.2f} %")
    if target is not None:
        time = summary["time_to_target"]
        reached = f"reached at time {time:.4g}" if time < np.inf else "not reached"
        words.append(f"{100 * target:g} % {reached}")
    if summary["stages"] and summary["stages"][-1]["completed"] is False:
        words += _unfinished_stage(history, summary["stages"][-1])
    if history.diverged is not None:
        words.append(
            f"DIVERGED in round {history.diverged}, try a smaller --learning-rate"
        )
    seconds = (
        f"({history.host_seconds:.1f} s on this machine, "
        f"{history.compile_seconds:.1f} of them compiling)"
    )
    return f"{', '.join(words)} {seconds}"


def _unfinished_stage(history: History, stage: Mapping[str, Any]) -> list[str]:
    words = [
        f"stage {stage['stage']} ({stage['cohort_size']} clients) NOT COMPLETED in "
        f"{stage['num_rounds']} rounds"
    ]
    thresholds = history.metrics.get("grad_norm_threshold")
    if thresholds is None:
        return words
    norms = history.metrics[GRADIENT_NORM]
    begin = stage["first_round"] - 1
    # empty rounds have no gradient
    rounds = np.flatnonzero(~np.isnan(norms[begin:]) & ~np.isnan(thresholds[begin:]))
    if len(rounds):
        last = begin + rounds[-1]
        words.append(f"gradient norm {norms[last]:.3g} above {thresholds[last]:.3g}")
    return words
