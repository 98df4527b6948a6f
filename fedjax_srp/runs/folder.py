"""The folder of a run: written by a simulation, resumed after a kill, unchanged when finished."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_srp import methods, run_folder, storage, watch
from fedjax_srp.base import GRADIENT_NORM, FederatedSource
from fedjax_srp.engine.checkpoint import snapshots
from fedjax_srp.engine.simulate import simulate
from fedjax_srp.history import History
from fedjax_srp.report import table
from fedjax_srp.run_folder import MODELS
from fedjax_srp.runs.run import AFTERWARDS, ASIDE, LIMITS, Run, load_data
from fedjax_srp.storage import is_foreign, jsonable

_ARGUMENTS = "arguments.json"  # beside the checkpoints


def execute(
    run: Run,
    folder: Path,
    *,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = print,
    load: Callable[[Mapping[str, Any]], FederatedSource] | None = None,
    callback: watch.Callback | None = None,
) -> None:
    """Simulate a run into a folder, or resume it; a finished one is not changed.

    With `overwrite` it runs again, and the folder keeps its content until the new run is finished. `load` returns the
    data of an unfinished run; None for `load_data`.

    Raises:
        ValueError: an argument out of range, a folder that holds another run, cannot be written to, or that another
            process is writing to.
        OSError: the disk is full.
    """
    with contextlib.ExitStack() as stack:

        def hold() -> _Found:
            """Lock the folder and check it again, since others may have used it."""
            stack.enter_context(storage.held(storage.writable(folder), "out"))
            return _found(folder, run, overwrite)

        found = _found(folder, run, overwrite)
        is_held = (found.asks_anew or not found.finished) and folder.is_dir()
        if is_held:
            found = hold()
        given: dict[str, Any] = {}
        if not found.finished:
            given = run.simulation((load or load_data)(run.data))
            if not is_held:  # only now, so that a failed start makes no folder
                found = hold()
        if found.finished:
            return _left_alone(folder, run, found.asks_anew, say)
        if run.checkpoint:
            if found.begun:
                say(f"continuing the run in {folder}")
            storage.writable(found.place)
            storage.write_json(found.place / _ARGUMENTS, run.record)
        has_models = (folder / MODELS).is_dir() and not is_foreign(folder / MODELS)
        with_models = run.models or (found.begun and has_models)
        history = simulate(
            **given,
            progress=progress,
            checkpoint_dir=found.place if run.checkpoint else None,
            keep_clients=with_models,
            callback=callback,
        )
        save(history, folder, run, with_models)
        _tidy(folder, found.place if run.checkpoint else None)
    say(outcome(history, run.target, run.communication))
    kept = f", {_size(folder / 'checkpoint')} of it to make the run longer" if run.checkpoint else ""
    say(f"written to {folder}: {_size(folder)}{kept}")
    return None


def _left_alone(folder: Path, run: Run, asks_anew: bool, say: Callable[[str], None]) -> None:
    """Print that a folder has the finished run, and its result; rewrite its summary for another cost."""
    history, cost = History.load(folder), run.communication
    table.check_communication(cost)
    said = outcome(history, run.target, cost)
    if asks_anew:  # of the history itself, whose models stay in the folder
        object.__setattr__(history, "config", jsonable(_config(history, run)))
        history.save(folder, target=run.target, communication=cost)
    anew, again = f"its summary and figure are those of communication={cost:g} now", "--overwrite runs it again"
    say(f"{folder} holds this run already, finished; {anew if asks_anew else again}")
    say(said)


def save(history: History, folder: Path, run: Run, models: bool) -> None:
    """Write the folder of a run, with its options."""
    history = dataclasses.replace(history, config=_config(history, run))
    run_folder.write(history, folder, run.target, run.communication, models)


def _config(history: History, run: Run) -> dict[str, Any]:
    return {**history.config, "seed": run.seed, "arguments": run.record}


def made(folder: Path) -> dict[str, Any]:
    """Return the record of the finished run in a folder."""
    try:
        return dict(json.loads((folder / "config.json").read_text("utf-8"))["config"].get("arguments", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise storage.DamagedError("config.json does not read as that of a run") from None


def _is_ours(place: Path) -> bool:
    """Return True if a folder is missing or empty, or has checkpoints of a run, which may be damaged."""
    record = place / _ARGUMENTS
    is_kept = storage.has_checksum(record) or any(not is_foreign(place / str(n)) for n in snapshots(place))
    if is_kept or not place.is_dir():
        return is_kept or not place.exists()
    return all(
        path.name.startswith(".") and (path.is_file() or path.suffix in (".writing", ".gone"))  # of a killed run
        for path in place.iterdir()
    )


class _Found(NamedTuple):
    place: Path  # of its checkpoints
    finished: bool = False
    begun: bool = False  # there is a checkpoint to resume from
    asks_anew: bool = False  # it is finished, with a summary for another cost of communication


def _found(folder: Path, run: Run, overwrite: bool) -> _Found:
    """Find this run, finished or begun; refuse folders of other runs, and losing results."""
    what = run.record
    others = [] if _is_ours(folder / "checkpoint") else ["checkpoint"]
    if run.models and is_foreign(folder / MODELS):
        others.append(MODELS)
    if others:
        raise ValueError(f"out={str(folder)!r}: its {others[0]} was not written by fedjax_srp; give another --out")
    if overwrite:
        place = folder / f"overwriting_{zlib.crc32(json.dumps(what).encode()):08x}"
        return _Found(place, begun=bool(snapshots(place)))
    place = folder / "checkpoint"
    finished, begun = (folder / "summary.json").is_file(), bool(snapshots(place))
    other, out = "give another --out, or --overwrite", f"out={str(folder)!r}"
    try:
        if finished or (not begun and (folder / "config.json").exists()):
            known = made(folder)
        else:
            known = storage.read_json(place / _ARGUMENTS) if begun else what
    except storage.DamagedError as error:
        if begun:
            return _Found(place, begun=True)  # the checkpoints check their run
        raise ValueError(f"{out}: {error}; {other}") from None
    if not (finished or begun) and (name := run_folder.foreign(folder)):
        raise ValueError(f"{out}: its {name} was not written by fedjax_srp; {other}")
    for name in {**what, **known}:
        if name not in (*LIMITS, *ASIDE) and known.get(name) != what.get(name):
            differs = f"{name}={known.get(name)!r} where this one has {what.get(name)!r}"
            raise ValueError(f"{out}: holds another run, with {differs}; {other}")
    if not finished:
        return _Found(place, begun=begun)
    longer = {name: known.get(name) for name in LIMITS if known.get(name) != what.get(name)}
    lacks_models = run.models and not (folder / MODELS).is_dir()
    if not longer and not lacks_models:
        is_anew = known.get(AFTERWARDS) != what.get(AFTERWARDS) and jax.process_count() == 1
        return _Found(place, finished=True, asks_anew=is_anew)
    if not (begun and run.checkpoint):
        has = ", ".join(f"{name}={value}" for name, value in longer.items()) or "no models"
        raise ValueError(f"{out}: holds this run with {has}, and no checkpoint to go on from; {other}")
    return _Found(place, begun=True)


def _tidy(folder: Path, place: Path | None) -> None:
    """Remove all checkpoints but that of the finished run; all for None."""
    checkpoints = folder / "checkpoint"
    if place != checkpoints:
        storage.remove(checkpoints)
        if place is not None:
            place.rename(checkpoints)
    for left in folder.glob("overwriting_*"):
        if _is_ours(left):
            storage.remove(left)
    storage.clear(folder)


def _size(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def outcome(history: History, target: float | None, communication: float) -> str:
    """Return a short text of a finished run."""
    summary = history.summary(target, communication)
    words = [f"{methods.label(history.name)}: {history.num_rounds} rounds"]
    words.append(f"simulated time {summary['simulated_time']:.4g} at communication cost {communication:g}")
    if summary["final_accuracy"] is not None:
        words.append(f"final accuracy {100 * summary['final_accuracy']:.2f} % ({history.evaluation})")
        words.append(f"worst tenth of the clients {100 * summary['worst_decile']:.2f} %")
    if target is not None:
        time = summary["time_to_target"]
        words.append(f"{100 * target:g} % {'not reached' if time == float('inf') else f'reached at time {time:.4g}'}")
    if summary["stages"] and summary["stages"][-1]["completed"] is False:
        last, metrics = summary["stages"][-1], summary["final_metrics"]
        words.append(
            f"stage {last['stage']} ({last['cohort_size']} clients) NOT COMPLETED in {last['num_rounds']} rounds"
        )
        if "grad_norm_threshold" in metrics:
            words.append(f"gradient norm {metrics[GRADIENT_NORM]:.3g} above {metrics['grad_norm_threshold']:.3g}")
    if history.diverged is not None:
        words.append(f"DIVERGED in round {history.diverged}, try a smaller --learning-rate")
    words[-1] += f" ({history.host_seconds:.1f} s on this machine, {history.compile_seconds:.1f} of them compiling)"
    return ", ".join(words)
