"""The folder of one run, written and read back: `History.save` and `History.load` end here.

Files are CSV and strict JSON, and carry every bit of the floats: a resumed run ends with the bytes in `history.csv` of
one that never stopped, which is why host timings are in `summary.json`.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_srp import stored
from fedjax_srp.columns import ROUND_COLUMNS
from fedjax_srp.history import STATES, History
from fedjax_srp.report import drawing
from fedjax_srp.stored import jsonable

if TYPE_CHECKING:
    import pandas as pd

_FILES = ("config.json", "history.csv", "clients.csv", "summary.json")  # without them `load` refuses
MODELS = "models"  # a folder in it
BOOK = "grid.json"  # in the folder of a grid: which runs are one program, and in which folders
_WORDS: dict[type, Callable[[str], Any]] = {
    np.int64: int,
    np.float64: lambda word: float(word or "nan"),
    np.bool_: {"True": True, "False": False}.__getitem__,
}


def save(history: History, folder: Path, target: float | None, communication: float, models: bool) -> Path:
    """See `History.save`."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"directory={str(folder)!r} is a file: give a folder to write the run to")
    if models and history.server_state is None:
        raise ValueError("models=True: this history has no server_state; simulate again, or load a run saved with it")
    config = {
        "name": history.name,
        "config": history.config,
        "environment": _environment() if history.environment is None else history.environment,
        "evaluations": list(history.accuracies),
        "score": {"name": history.score_name, "smaller_is_better": history.smaller_is_better},
        "metrics": list(history.metrics),
        "asynchronous": history.asynchronous,
    }
    summary = history.summary(target, communication)
    figure = _figure(history, communication)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)  # written last: where it is, the folder is complete
    stored.replace({folder / "config.json": lambda path: _write_json(path, config)})
    for name, frame in (("history.csv", history.to_frame()), ("clients.csv", history.clients_frame())):
        as_csv = functools.partial(frame.to_csv, index=False, lineterminator="\n")
        stored.replace({folder / name: as_csv})
    if figure is None:
        (folder / "accuracy.png").unlink(missing_ok=True)
    else:
        stored.replace({folder / "accuracy.png": lambda path: path.write_bytes(figure)})
    if models:
        _save_models(history, folder / MODELS)
    elif not _is_same(vars(history).get("models"), folder / MODELS):  # else they are its own
        stored.remove(folder / MODELS)
    stored.replace({folder / "summary.json": lambda path: _write_json(path, summary)})
    return folder


def _figure(history: History, communication: float) -> bytes | None:
    """The figure as PNG; None where there is nothing to draw, or it cannot be drawn, for which no run is lost."""
    if not (len(history.eval_round) or (history.metrics and history.num_rounds)):
        return None
    try:
        return drawing.png(history.plot(communication))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        warnings.warn(f"accuracy.png of {history.name!r} is left out, it cannot be drawn ({why})", stacklevel=4)
        return None


def unfinished(folder: Path) -> list[Path]:
    """The run folders below a folder, begun or in the plan of a grid, that hold no finished run."""
    found = {path.parents[1] for path in folder.rglob("checkpoint/arguments.json")}
    for book in folder.rglob(BOOK):
        with contextlib.suppress(stored.DamagedError):
            found |= {book.parent / name for of_unit in stored.read_json(book).values() for name in of_unit.values()}
    return sorted(run for run in found if not (run / "summary.json").is_file())


def _is_same(one: Path | None, other: Path) -> bool:
    """Whether two paths lead to one folder, however they are written."""
    return one is not None and one.exists() and other.exists() and one.samefile(other)


def _save_models(history: History, folder: Path) -> None:
    """Writes the states as they are named, typed keys as their bits."""
    import jax
    import jax.numpy as jnp

    states = {name: getattr(history, name) for name in STATES if getattr(history, name) is not None}
    arrays, keys = stored.named(states), {}
    for name, leaf in arrays.items():
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            keys[name], leaf = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
        arrays[name] = np.asarray(leaf)
    facts = {"name": history.name, "num_rounds": history.num_rounds, "states": list(states), "keys": keys}
    stored.write(folder, arrays, facts, alone=True)


def load_models(folder: Path) -> dict[str, Any]:
    """The states that `save` wrote, as dicts of NumPy arrays.

    Raises:
        ValueError: they are not what was written.
    """
    import jax

    try:
        arrays, facts = stored.read(folder, alone=True), stored.seal(folder)["facts"]
    except stored.DamagedError as error:
        raise ValueError(f"{str(folder)!r} is damaged ({error}): save the run again with models=True") from None
    for name, kind in facts["keys"].items():
        arrays[name] = jax.random.wrap_key_data(arrays[name], impl=kind)
    found: dict[str, Any] = dict.fromkeys(STATES)
    return found | {state: {} for state in facts["states"]} | stored.nested(arrays)


def load(folder: Path) -> History:
    """See `History.load`."""
    for name in _FILES:
        if not (folder / name).is_file():
            hint = "run it again, it was killed while saving"
            if name == "config.json":
                hint = "give the folder that History.save or a command with --out wrote"
            raise FileNotFoundError(f"{str(folder)!r} holds no complete run: {name} is missing; {hint}")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        rounds, clients = _read_csv(folder / "history.csv"), _read_csv(folder / "clients.csv")
        num_clients, num_evaluations = summary["num_clients"], summary["num_evaluations"]
        per_evaluation = num_clients * num_evaluations
        scores = _floats(clients["accuracy"]) if per_evaluation else np.zeros(0)
        scores = scores.reshape(len(config["evaluations"]), num_evaluations, num_clients)
        score = config.get("score", {"name": "accuracy", "smaller_is_better": False})  # folders without are older
        columns: dict[str, Any] = {}
        for name, dtype in ROUND_COLUMNS.items():
            columns[name] = np.array([_WORDS[dtype](word) for word in rounds[name]], dtype)
        for name in ("seconds_per_round", "compile_seconds", "host_seconds"):
            columns[name] = float(summary[name])
        history = History(
            **columns,
            name=config["name"],
            client_time=_floats(clients["expected_time"][:num_clients]),
            metrics={name: _floats(rounds[name]) for name in config["metrics"]},
            eval_round=np.array(clients["round"][: per_evaluation : max(num_clients, 1)], np.int64),
            accuracies=dict(zip(config["evaluations"], scores, strict=True)),
            test_count=np.array(clients["test_count"][:num_clients], np.int64),
            bytes_up=summary["bytes_up"],
            bytes_down=summary["bytes_down"],
            asynchronous=config.get("asynchronous", False),
            score_name=score["name"],
            smaller_is_better=score["smaller_is_better"],
            config=config["config"],
            environment=config["environment"],
        )
        if (folder / MODELS).is_dir():  # read when they are asked for
            for name in STATES:
                del vars(history)[name]
            vars(history)["models"] = (folder / MODELS).absolute()
        return history
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"{str(folder)!r} does not read as one run ({reason}): run it again") from error


def clients_frame(history: History) -> pd.DataFrame:
    """See `History.clients_frame`."""
    import pandas as pd

    num_evaluations, num_clients = len(history.eval_round), history.num_clients
    if num_evaluations:
        names, rounds, scores = list(history.accuracies), history.eval_round, list(history.accuracies.values())
    else:
        names, rounds, scores = [""], np.zeros(1, np.int64), [np.full((1, num_clients), np.nan)]
    repeats = len(names) * len(rounds)
    columns = {
        "evaluation": np.repeat(np.array(names, object), len(rounds) * num_clients),
        "round": np.tile(np.repeat(rounds, num_clients), len(names)),
        "client": np.tile(np.arange(num_clients), repeats),
        "accuracy": np.concatenate([s.ravel() for s in scores]),
        "test_count": np.tile(history.test_count, repeats),
        "expected_time": np.tile(history.client_time, repeats),
    }
    return pd.DataFrame(columns)


def _read_csv(path: Path) -> dict[str, Sequence[str]]:
    """Column -> words. Python's own float() gives every bit back, whatever the version of pandas."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True))


def _floats(words: Sequence[str]) -> np.ndarray:
    return np.array([float(word or "nan") for word in words], np.float64)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n", "utf-8", newline="\n")


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _environment() -> dict[str, Any]:
    """Versions, git hash of the working directory (None outside git) and device of this process."""
    import jax

    changes = _git("status", "--porcelain", "--untracked-files=no")
    devices = jax.devices()
    return {
        "versions": {
            "python": platform.python_version(),
            "fedjax_srp": _version("fedjax-srp"),
            **{package: _version(package) for package in ("jax", "jaxlib", "numpy")},
        },
        "git_hash": _git("rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
        "device": {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)},
    }


def writable(out: str | os.PathLike) -> Path:
    """The folder, made where missing.

    Raises:
        ValueError: nothing can be written there.
    """
    folder = Path(out)
    if folder.is_file():
        raise ValueError(f"out={os.fspath(out)!r}: is a file; give a folder")
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"out={os.fspath(out)!r}: {error.strerror or error}; give a folder that can be written to"
        ) from None
    return folder
