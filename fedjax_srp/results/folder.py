"""Folder of a run, for `History.save` and `History.load`.

Files are CSV and strict JSON, with every bit of the floats. `history.csv` of a resumed
run equals that of an uninterrupted one, so host timings are in `summary.json`. That file
is the seal of the folder: it replaces its predecessor last, with the checksums of the
others. Every reader goes through `atomic.current`, which finds the old result or the new
one while the files of the new one replace those of the old one.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jaxlib
import numpy as np

from fedjax_srp.parts.checks import is_key, short
from fedjax_srp.parts.columns import ROUND_COLUMNS, accuracy_column
from fedjax_srp.parts.files import open_file, read_text
from fedjax_srp.results import atomic, csv_files, json_files, records, sealed_folders
from fedjax_srp.results.atomic import NEXT
from fedjax_srp.results.commits import commits
from fedjax_srp.results.errors import DamagedError, reading
from fedjax_srp.results.measures import FREE_START, StartCost
from fedjax_srp.results.sealed_folders import SEAL

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config.json"
TABLES = (CONFIG, "history.csv", "clients.csv")
FIGURE = "accuracy.png"
SUMMARY = "summary.json"
COST = "communication"  # its key of the cost of a communicating round
MODELS = "models"  # subfolder
CHECKPOINT = "checkpoint"  # subfolder
ARGUMENTS = "arguments.json"  # in the folder of checkpoints
_SEAL_OF_MODELS = f"{MODELS}/{SEAL}"
STATES = ("server_state", "client_states")
# of the simulator; not in `history.csv`
SECONDS = ("seconds_per_round", "compile_seconds", "host_seconds")
# in the folder of a grid: unit id -> point id -> name of the run folder
GRID_INDEX = "grid.json"
_STRUCTURE = {  # of the members of summary and config together
    "files": dict,
    **dict.fromkeys(("num_clients", "num_evaluations", "bytes_up", "bytes_down"), int),
    "name": str,
    "config": dict,
    "environment": dict,
    "evaluations": [str],
    "score": {"name": str, "smaller_is_better": bool},
    "metrics": [str],
    "asynchronous": bool,
    "communication_included": bool,
    "client_names": list | None,
    "start": (
        type(None),
        {"time": float | int, "passes": int, "bytes_up": int, "bytes_down": int},
    ),
}
_TRIES = 100  # to read a folder whose result is replaced again and again
# Python's float() restores every bit, unlike some versions of pandas
_WORDS: dict[type, Callable[[str], Any]] = {
    np.int64: int,
    np.float64: lambda word: float(word or "nan"),
    np.bool_: {"True": True, "False": False}.__getitem__,
}


class SavedModels(NamedTuple):
    """The states of a run in its folder."""

    folder: Path
    digest: Any  # of their seal


def write(
    history: Any, folder: Path, target: float | None, communication: float, models: bool
) -> Path:
    """Write the folder of a run in the place of an earlier one, see `History.save`.

    The caller holds the folder.
    """
    config = _config(history)
    summary = history.summary(target, communication)
    figure = None
    if len(history.eval_round) or (history.metrics and history.num_rounds):
        title = f"{FIGURE} of {history.name!r}"
        figure = image(lambda: history.plot(communication), title)
    atomic.writable(folder, "directory")
    if models:
        sealed_folders.check_not_foreign(folder / MODELS)
    for name in (*TABLES, FIGURE, SUMMARY):
        atomic.check_no_folder(folder / name)
    atomic.clear(folder)
    settle(folder)
    digest_of_models = _digest_of_loaded_models(history, folder)
    with atomic.staged(folder) as staging:
        json_files.as_json(config)(staging / CONFIG)
        csv_files.as_csv(_rounds_table(history, 0.0))(staging / "history.csv")
        csv_files.as_csv(_clients_table(history))(staging / "clients.csv")
        if figure is not None:
            (staging / FIGURE).write_bytes(figure)
        files = list(staging.iterdir())
        if models:
            _save_models(history, staging / MODELS)
            files.append(staging / _SEAL_OF_MODELS)
        digests = sealed_folders.digests(staging, files)
        if not models and digest_of_models is not None:
            digests[_SEAL_OF_MODELS] = digest_of_models
        json_files.as_json({**summary, "files": digests})(staging / SUMMARY)
    settle(folder)
    return folder


def _config(history: Any) -> dict[str, Any]:
    """Return the content of `config.json`."""
    environment = history.environment
    if environment is None:
        environment = _environment()
    config = {
        "name": history.name,
        "config": history.config,
        "environment": environment,
        "evaluations": list(history.accuracies),
        "score": {
            "name": history.score_name,
            "smaller_is_better": history.smaller_is_better,
        },
        "metrics": list(history.metrics),
        "asynchronous": history.asynchronous,
        "communication_included": history.communication_included,
    }
    if history.client_names is not None:
        config["client_names"] = history.client_names
    if history.start != FREE_START:
        config["start"] = history.start._asdict()
    return config


def settle(folder: Path) -> None:
    """Finish the replacement of an earlier result, also that of a killed process.

    The caller holds the folder.
    """
    newer = folder / NEXT
    if newer.is_symlink() or not newer.is_dir():
        return
    with contextlib.suppress(DamagedError):
        files = json_files.read_json(newer / SUMMARY)["files"]
        if FIGURE not in files:
            (folder / FIGURE).unlink(missing_ok=True)
        models = folder / MODELS
        if _SEAL_OF_MODELS not in files and not sealed_folders.is_foreign(models):
            atomic.remove(models)
    atomic.settle(folder, (*TABLES, FIGURE, MODELS, SUMMARY))


def _digest_of_loaded_models(history: Any, folder: Path) -> Any:
    """Return the digest of the models in a folder that the history was loaded from.

    None if it comes from elsewhere, or was saved without models.
    """
    models = vars(history).get(MODELS)
    if models is None or not models.folder.exists() or not models.folder.samefile(folder):
        return None
    try:
        sealed_folders.read_sealed(folder / _SEAL_OF_MODELS, models.digest)
    except DamagedError:  # meanwhile another run has replaced them
        return None
    return models.digest


def is_finished(folder: Path) -> bool:
    """Return True if a folder has the result of a run."""
    return atomic.current(folder, SUMMARY).is_file()


def has_models(folder: Path) -> bool:
    """Return True if a folder has the states of a run."""
    models = atomic.current(folder, MODELS)
    return models.is_dir() and not sealed_folders.is_foreign(models)


def read_config(folder: Path) -> dict[str, Any]:
    """Return `History.config` of the run in a folder, without a look at the checksum.

    Raises:
        DamagedError: it cannot be read.
    """
    return _name_and_config(folder)[1]


def _name_and_config(folder: Path) -> tuple[Any, dict[str, Any]]:
    with reading(CONFIG, "is not that of a run"):
        content = json_files.parse(read_text(atomic.current(folder, CONFIG)))
        config = json_files.jsonable(dict(content["config"]))  # not too deep
        if not json_files.has_structure(config, records.STRUCTURE):
            raise ValueError("other settings")
        return content["name"], config


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of the run in a folder.

    Raises:
        DamagedError: it cannot be read.
    """
    return json_files.read_json(atomic.current(folder, SUMMARY))


def has_cost(folder: Path, communication: float) -> bool:
    """Return True if the summary in a folder is that of a cost; `load` refuses a damaged one."""
    try:
        return read_summary(folder).get(COST) == communication
    except DamagedError:
        return True


def difference(history: Any, folder: Path) -> str:
    """Describe how the finished run in a folder differs from that of a history.

    Longer runs of the same settings are the same run. "" for no difference, or for a
    folder without a finished run.
    """
    if not is_finished(folder):
        return ""
    try:
        name, config = _name_and_config(folder)
    except DamagedError:
        return ""
    ours = {"name": history.name, **history.config}
    for fact, value, other in records.contradictions(ours, {"name": name, **config}):
        return f"{fact}={short(other)} where this one has {short(value)}"
    return ""


def rounds_frame(history: Any, communication: float = 0.0) -> pd.DataFrame:
    """Return the table in `history.csv`, see `History.to_frame`."""
    import pandas as pd

    return pd.DataFrame(_rounds_table(history, communication))


def _rounds_table(history: Any, communication: float) -> dict[str, np.ndarray]:
    """Return the columns of `rounds_frame`."""
    columns = {name: getattr(history, name) for name in ROUND_COLUMNS}
    columns |= {"elapsed": history.elapsed(communication), **history.metrics}
    for evaluation in history.accuracies:
        values = np.full(history.num_rounds + 1, np.nan)
        values[history.eval_round] = history.mean_scores(evaluation)
        columns[accuracy_column(evaluation)] = values[1:]
    return columns


def clients_frame(history: Any) -> pd.DataFrame:
    """Return the table in `clients.csv`, see `History.clients_frame`."""
    import pandas as pd

    return pd.DataFrame(_clients_table(history))


def _clients_table(history: Any) -> dict[str, np.ndarray]:
    """Return the columns of `clients_frame`."""
    scores = history.accuracies
    rounds = history.eval_round
    if not len(rounds):
        scores = {"": np.full((1, history.num_clients), np.nan)}
        rounds = np.zeros(1, np.int64)
    clients = history.num_clients
    repeats = len(scores) * len(rounds)
    columns = {
        "evaluation": np.repeat(np.array([*scores], object), len(rounds) * clients),
        "round": np.tile(np.repeat(rounds, clients), len(scores)),
        "client": np.tile(np.arange(clients), repeats),
    }
    if history.client_names is not None:
        names = np.array(history.client_names, object)
        columns["client_name"] = np.tile(names, repeats)
    return columns | {
        "accuracy": np.concatenate(
            [of_clients.ravel() for of_clients in scores.values()]
        ),
        "test_count": np.tile(history.test_count, repeats),
        "expected_time": np.tile(history.client_time, repeats),
        "rounds_taken_in_all": np.tile(history.rounds_taken, repeats),
    }


def foreign(folder: Path) -> str:
    """Return the name of a table in this folder that no run wrote; "" if there is none.

    Damaged tables count as a run's. A run writes `config.json` first.
    """
    for name in (CONFIG, SUMMARY):
        if (folder / name).is_file():
            with open_file(folder / name) as file:
                content = file.read()
            # its end, with the checksum, may be missing
            is_cut = not content or b'"environment": {' in content
            if is_cut or json_files.has_checksum(folder / name):
                return ""
            return name
    for name in TABLES:
        if (folder / name).exists():
            return name
    return ""


def image(draw: Callable[[], Any], name: str) -> bytes | None:
    """Return the bytes of a figure in the format of its file name.

    None, with a warning, if drawing fails.
    """
    try:
        content = io.BytesIO()
        kind = name.split(" ")[0].rpartition(".")[2]
        metadata = {"CreationDate": None} if kind == "pdf" else None
        draw().savefig(content, dpi=150, format=kind, metadata=metadata)
        return content.getvalue()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        warnings.warn(f"{name} is left out, it cannot be drawn ({reason})", stacklevel=5)
        return None


def load(folder: Path) -> tuple[dict[str, Any], SavedModels | None]:
    """Return the fields of the saved `History`, and the place of its states.

    Every byte is verified; the states are not read.

    Raises:
        FileNotFoundError: a file of the run is missing.
        DamagedError: a file is damaged.
    """
    try:
        return _unless_replaced(folder, lambda: _load(folder))
    except DamagedError as error:
        raise DamagedError(
            f"{str(folder)!r} is damaged ({error}): run it again, or give a copy"
        ) from None


def _load(folder: Path) -> tuple[dict[str, Any], SavedModels | None]:
    for name in (*TABLES, SUMMARY):
        if not atomic.current(folder, name).is_file():
            hint = "run it again, it was killed while saving"
            if name == CONFIG:
                hint = "give the folder that History.save or a command with --out wrote"
            raise FileNotFoundError(
                f"{str(folder)!r} holds no complete run: {name} is missing; {hint}"
            )
    summary = json_files.read_json(atomic.current(folder, SUMMARY))
    with reading("the content of its tables", "is not that of a run"):
        files = summary["files"]
        config, rounds, clients = [
            sealed_folders.read_sealed(atomic.current(folder, name), files[name])
            for name in TABLES
        ]
        config = json_files.jsonable(json_files.parse(config))  # not too deep
        if not json_files.has_structure(summary | config, _STRUCTURE):
            raise ValueError("other members")
        fields = _fields(summary, config, _read_csv(rounds), _read_csv(clients))
    if _SEAL_OF_MODELS in files and atomic.current(folder, MODELS).is_dir():
        return fields, SavedModels(folder.absolute(), files[_SEAL_OF_MODELS])
    return fields, None


def _fields(
    summary: dict[str, Any],
    config: dict[str, Any],
    rounds: dict[str, Sequence[str]],
    clients: dict[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the fields of a `History` from the content of its four files."""
    fields: dict[str, Any] = {}
    for name, kind in ROUND_COLUMNS.items():
        fields[name] = _numbers(rounds[name], kind)
    fields["metrics"] = {}
    for name in config["metrics"]:
        cells = rounds[csv_files.as_cell(name)]
        fields["metrics"][name] = _numbers(cells, np.float64)
    for name in SECONDS:
        fields[name] = float(summary[name])
    for name in ("asynchronous", "communication_included", "config", "environment"):
        fields[name] = config[name]

    num_clients = summary["num_clients"]
    num_evaluations = summary["num_evaluations"]
    num_scores = num_clients * num_evaluations  # of an evaluation of that name
    scores = np.zeros(0)
    if num_scores:
        scores = _numbers(clients["accuracy"], np.float64)
    names = config["evaluations"]
    scores = scores.reshape(len(names), num_evaluations, num_clients)
    # written by versions before the name said that it is the run's total
    total = "rounds_taken" if "rounds_taken" in clients else "rounds_taken_in_all"
    eval_round = clients["round"][: num_scores : max(num_clients, 1)]
    return (
        fields
        | {
            "name": config["name"].encode(errors="replace").decode(),  # lone surrogates
            "client_names": config.get("client_names"),
            "start": StartCost(**(config.get("start") or {})),
            "client_time": _numbers(clients["expected_time"][:num_clients], np.float64),
            "eval_round": _numbers(eval_round, np.int64),
            "accuracies": dict(zip(names, scores, strict=True)),
            "test_count": _numbers(clients["test_count"][:num_clients], np.int64),
            "rounds_taken": _numbers(clients[total][:num_clients], np.int64),
            "bytes_up": summary["bytes_up"],
            "bytes_down": summary["bytes_down"],
            "score_name": config["score"]["name"],
            "smaller_is_better": config["score"]["smaller_is_better"],
        }
    )


def _unless_replaced(folder: Path, read: Callable[[], Any]) -> Any:
    """Read a folder, again if its files were replaced meanwhile."""
    for _ in range(_TRIES):
        before = _state(folder)
        try:
            result = read()
        except (OSError, ValueError):
            if _state(folder) == before:
                raise
        else:
            if _seal(folder) == before[0]:
                return result
    return read()


def _state(folder: Path) -> tuple[bytes, list[str]]:
    """Return the seal of the result, and the names of files that still replace others."""
    names = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(folder / NEXT))
    return _seal(folder), names


def _seal(folder: Path) -> bytes:
    for _ in range(_TRIES):  # moved between the two system calls
        path = atomic.current(folder, SUMMARY)
        with contextlib.suppress(OSError), open_file(path) as file:
            return file.read()
    return b""


def _read_csv(content: bytes) -> dict[str, Sequence[str]]:
    """Return column -> cells as strings."""
    header, *rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return dict(zip(header, columns, strict=True))


def _numbers(words: Sequence[str], kind: type) -> np.ndarray:
    return np.array([*map(_WORDS[kind], words)], kind)


def _save_models(history: Any, folder: Path) -> None:
    """Write the states by name, with the data of typed keys."""
    states = {}
    for name in STATES:
        state = getattr(history, name)
        if state is not None:
            states[name] = state
    arrays = {}
    keys = {}
    for name, leaf in sealed_folders.named(states).items():
        if is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = np.asarray(leaf)
    facts = {
        "name": history.name,
        "num_rounds": history.num_rounds,
        "states": list(states),
        "keys": keys,
    }
    sealed_folders.write(folder, arrays, facts, alone=True)


def load_models(saved: SavedModels) -> dict[str, Any]:
    """Return the saved states, as dicts of NumPy arrays."""
    try:
        return _unless_replaced(saved.folder, lambda: _load_models(saved))
    except DamagedError as error:
        folder = str(saved.folder / MODELS)
        raise ValueError(
            f"{folder!r} is damaged ({error}): save the run again with models=True"
        ) from None


def _load_models(saved: SavedModels) -> dict[str, Any]:
    from flax.traverse_util import unflatten_dict

    folder = atomic.current(saved.folder, MODELS)
    arrays = sealed_folders.read(folder, alone=True)
    facts = json_files.read_json(folder / SEAL)["facts"]
    # last, in case another run has replaced them
    sealed_folders.read_sealed(folder / SEAL, saved.digest)
    with reading(SEAL, "is not that of a run"):
        for name, kind in facts["keys"].items():
            arrays[name] = jax.random.wrap_key_data(arrays[name], impl=kind)
        states: dict[str, Any] = dict.fromkeys(STATES)
        for name in facts["states"]:  # also states without arrays
            states[name] = {}
        return states | unflatten_dict(arrays, sep="/")


def finished(folder: Path) -> list[Path]:
    """Return the finished run folders in a folder, without those of killed writers."""
    runs = set()
    for path in _within(folder, SUMMARY):
        run = path.parent
        if run.name == NEXT:
            run = run.parent
        if not any(part.endswith(".writing") for part in run.parts[-2:]):
            runs.add(run)
    return sorted(runs)


def _within(folder: Path, file: str) -> set[Path]:
    """Return the paths of such a file in a folder and at any depth.

    It may be in a folder that a link leads to, but not deeper.
    """
    return {*folder.glob(file), *folder.rglob(f"*/{file}")}


def unfinished(folder: Path) -> list[Path]:
    """Return the unfinished run folders: started ones, and those in the index of a grid."""
    runs = {path.parents[1] for path in _within(folder, f"{CHECKPOINT}/{ARGUMENTS}")}
    for index in _within(folder, GRID_INDEX):
        # a checksum is no secret
        with contextlib.suppress(DamagedError, AttributeError, TypeError):
            for points in json_files.read_json(index).values():
                runs.update(index.parent / name for name in points.values())
    return sorted(run for run in runs if not is_finished(run))


def _environment() -> dict[str, Any]:
    """Return versions, commits of package and working directory, and devices."""
    devices = jax.devices()
    return {
        "versions": {
            "python": platform.python_version(),
            **records.versions(),
            "jaxlib": jaxlib.version.__version__,
            "numpy": np.__version__,
        },
        **commits(),
        "device": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
        },
    }
