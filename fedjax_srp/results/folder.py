"""Folder of a run, for `History.save` and `History.load`.

Files are CSV and strict JSON, with every bit of the floats. `history.csv` of a resumed run equals that of an
uninterrupted one, so host timings are in `summary.json`. That file is the seal of the folder: it replaces its
predecessor last, with the checksums of the others. Every reader goes through `atomic.current`, which finds the old
result or the new one while the files of the new one replace those of the old one.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from fedjax_srp._version import __version__
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.columns import ROUND_COLUMNS, accuracy_column
from fedjax_srp.parts.files import open_file, read_text
from fedjax_srp.results import atomic, csv_files, json_files, sealed_folders
from fedjax_srp.results.atomic import NEXT
from fedjax_srp.results.commits import commits
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.sealed_folders import SEAL

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("config.json", "history.csv", "clients.csv")
FIGURE = "accuracy.png"
SUMMARY = "summary.json"
MODELS = "models"  # subfolder
_SEAL_OF_MODELS = f"{MODELS}/{SEAL}"
STATES = ("server_state", "client_states")
SECONDS = (
    "seconds_per_round",
    "compile_seconds",
    "host_seconds",
)  # of the simulator; not in `history.csv`
GRID_INDEX = (
    "grid.json"  # in the folder of a grid: unit id -> point id -> name of the run folder
)
_NOT_OF_A_RUN = (  # settings that do not tell runs apart: limits, placement, and a place (data have a checksum)
    *("num_rounds", "time_limit", "target", "arguments", "dataset_options"),
    *("device", "num_devices", "chunk_size", "large_chunk", "shard_data"),
)
_TRIES = 100  # to read a folder whose result is replaced again and again
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
    """Write the folder of a run in the place of an earlier one, see `History.save`; the caller holds it."""
    config = {
        "name": history.name,
        "config": history.config,
        "environment": _environment()
        if history.environment is None
        else history.environment,
        "evaluations": list(history.accuracies),
        "score": {
            "name": history.score_name,
            "smaller_is_better": history.smaller_is_better,
        },
        "metrics": list(history.metrics),
        "asynchronous": history.asynchronous,
        "communication_included": history.communication_included,
    }
    summary, figure = history.summary(target, communication), None
    if len(history.eval_round) or (history.metrics and history.num_rounds):
        figure = image(
            lambda: history.plot(communication), f"{FIGURE} of {history.name!r}"
        )
    atomic.writable(folder, "directory")
    if models:
        sealed_folders.check_not_foreign(folder / MODELS)
    for name in (*TABLES, FIGURE, SUMMARY):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            raise IsADirectoryError(
                errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(folder / name)
            )
    atomic.clear(folder)
    settle(folder)
    kept = _kept_models(history, folder)
    with atomic.staged(folder) as staging:
        json_files.as_json(config)(staging / TABLES[0])
        csv_files.as_csv(history.to_frame())(staging / TABLES[1])
        csv_files.as_csv(history.clients_frame())(staging / TABLES[2])
        if figure is not None:
            (staging / FIGURE).write_bytes(figure)
        if models:
            _save_models(history, staging / MODELS)
        files = [path for path in staging.iterdir() if path.is_file()]
        if models:
            files.append(staging / _SEAL_OF_MODELS)
        digests = sealed_folders.digests(staging, files)
        if not models and kept is not None:
            digests[_SEAL_OF_MODELS] = kept
        json_files.as_json({**summary, "files": digests})(staging / SUMMARY)
    settle(folder)
    return folder


def settle(folder: Path) -> None:
    """Finish the replacement of an earlier result, also that of a killed process; the caller holds the folder."""
    newer = folder / NEXT
    if newer.is_symlink() or not newer.is_dir():
        return
    with contextlib.suppress(DamagedError):
        files = json_files.read_json(newer / SUMMARY)["files"]
        if FIGURE not in files:
            (folder / FIGURE).unlink(missing_ok=True)
        if _SEAL_OF_MODELS not in files and not sealed_folders.is_foreign(
            folder / MODELS
        ):
            atomic.remove(folder / MODELS)
    atomic.settle(folder, (*TABLES, FIGURE, MODELS, SUMMARY))


def _kept_models(history: Any, folder: Path) -> Any:
    """Return the digest of the models in a folder if the history was loaded from there with them; else None."""
    source = vars(history).get(MODELS)
    if source is None or not source.folder.exists() or not source.folder.samefile(folder):
        return None
    try:
        sealed_folders.read_sealed(folder / _SEAL_OF_MODELS, source.digest)
    except DamagedError:  # meanwhile another run has replaced them
        return None
    return source.digest


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
    try:
        return dict(json.loads(read_text(atomic.current(folder, TABLES[0])))["config"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise DamagedError(f"{TABLES[0]} is not that of a run") from None


def difference(history: Any, folder: Path) -> str:
    """Describe how the finished run in a folder differs from that of a history; "" for none, or no finished run.

    Longer runs of the same settings are the same run.
    """
    if not is_finished(folder):
        return ""
    try:
        known = read_config(folder)
        name = json.loads(read_text(atomic.current(folder, TABLES[0])))["name"]
    except (DamagedError, LookupError):
        return ""
    ours, theirs = {"name": history.name, **history.config}, {"name": name, **known}
    for option, value, other in json_files.differences(ours, theirs):
        if option.partition(".")[0] not in _NOT_OF_A_RUN:
            return f"{option}={short(other)} where this one has {short(value)}"
    return ""


def rounds_frame(history: Any, communication: float = 0.0) -> pd.DataFrame:
    """Return the table in `history.csv`, see `History.to_frame`."""
    import pandas as pd

    columns = {name: getattr(history, name) for name in ROUND_COLUMNS}
    columns |= {"elapsed": history.elapsed(communication), **history.metrics}
    for evaluation in history.accuracies:
        values = np.full(history.num_rounds + 1, np.nan)
        values[history.eval_round] = history.mean_scores(evaluation)
        columns[accuracy_column(evaluation)] = values[1:]
    return pd.DataFrame(columns)


def clients_frame(history: Any) -> pd.DataFrame:
    """Return the table in `clients.csv`, see `History.clients_frame`."""
    import pandas as pd

    scores, rounds = history.accuracies, history.eval_round
    if not len(rounds):
        scores, rounds = (
            {"": np.full((1, history.num_clients), np.nan)},
            np.zeros(1, np.int64),
        )
    index = pd.MultiIndex.from_product([scores, rounds, range(history.num_clients)])
    frame = index.to_frame(index=False, name=["evaluation", "round", "client"])
    repeats = len(scores) * len(rounds)
    return frame.assign(
        accuracy=np.concatenate([of_clients.ravel() for of_clients in scores.values()]),
        test_count=np.tile(history.test_count, repeats),
        expected_time=np.tile(history.client_time, repeats),
        rounds_taken=np.tile(history.rounds_taken, repeats),
    )


def foreign(folder: Path) -> str:
    """Return the name of a table in this folder, such as `config.json`, that no run wrote; "" if there is none.

    Damaged tables count as a run's. A run writes `config.json` first.
    """
    for name in (TABLES[0], SUMMARY):
        if (folder / name).is_file():
            with open_file(folder / name) as file:
                content = file.read()
            is_cut = (
                not content or b'"environment": {' in content
            )  # its end, with the checksum, may be missing
            return "" if is_cut or json_files.has_checksum(folder / name) else name
    return next((name for name in TABLES if (folder / name).exists()), "")


def image(draw: Callable[[], Any], name: str) -> bytes | None:
    """Return the bytes of a figure in the format of its file name; None, with a warning, if drawing fails."""
    try:
        content, kind = io.BytesIO(), name.split(" ")[0].rpartition(".")[2]
        draw().savefig(
            content,
            dpi=150,
            format=kind,
            metadata={"CreationDate": None} if kind == "pdf" else None,
        )
        return content.getvalue()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        warnings.warn(f"{name} is left out, it cannot be drawn ({reason})", stacklevel=5)
        return None


def load(folder: Path) -> tuple[dict[str, Any], SavedModels | None]:
    """Return the fields of the saved `History` without its states, after verifying every byte, and the states' place.

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
            if name == TABLES[0]:
                hint = "give the folder that History.save or a command with --out wrote"
            raise FileNotFoundError(
                f"{str(folder)!r} holds no complete run: {name} is missing; {hint}"
            )
    summary = json_files.read_json(atomic.current(folder, SUMMARY))
    try:
        files = dict(summary["files"])
        tables = {
            name: sealed_folders.read_sealed(atomic.current(folder, name), files[name])
            for name in TABLES
        }
        fields, models = _fields(summary, tables), atomic.current(folder, MODELS)
    except DamagedError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        raise DamagedError(
            "its tables are not those of a run"
        ) from None  # a checksum is no secret
    has_states = _SEAL_OF_MODELS in files and models.is_dir()
    return fields, SavedModels(
        folder.absolute(), files[_SEAL_OF_MODELS]
    ) if has_states else None


def _fields(summary: dict[str, Any], tables: dict[str, bytes]) -> dict[str, Any]:
    config = json.loads(tables["config.json"])
    rounds, clients = _read_csv(tables["history.csv"]), _read_csv(tables["clients.csv"])
    num_clients, num_evaluations = summary["num_clients"], summary["num_evaluations"]
    per_evaluation = num_clients * num_evaluations
    scores = _floats(clients["accuracy"]) if per_evaluation else np.zeros(0)
    scores = scores.reshape(len(config["evaluations"]), num_evaluations, num_clients)
    columns = {
        name: np.array([*map(_WORDS[kind], rounds[name])], kind)
        for name, kind in ROUND_COLUMNS.items()
    }
    return {
        **columns,
        **{name: float(summary[name]) for name in SECONDS},
        **{name: config[name] for name in ("asynchronous", "communication_included")},
        **{name: dict(config[name]) for name in ("config", "environment")},
        "name": config["name"]
        .encode(errors="replace")
        .decode(),  # replaces lone surrogates
        "client_time": _floats(clients["expected_time"][:num_clients]),
        "metrics": {
            name: _floats(rounds[csv_files.as_cell(name)]) for name in config["metrics"]
        },
        "eval_round": np.array(
            clients["round"][: per_evaluation : max(num_clients, 1)], np.int64
        ),
        "accuracies": dict(zip(config["evaluations"], scores, strict=True)),
        "test_count": np.array(clients["test_count"][:num_clients], np.int64),
        "rounds_taken": np.array(clients["rounds_taken"][:num_clients], np.int64),
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "score_name": config["score"]["name"],
        "smaller_is_better": config["score"]["smaller_is_better"],
    }


def _unless_replaced(folder: Path, read: Callable[[], Any]) -> Any:
    """Read a folder, again if its files were replaced meanwhile."""
    for _ in range(_TRIES):
        before = _state(folder)
        try:
            found = read()
        except (OSError, ValueError):
            if _state(folder) == before:
                raise
        else:
            if _seal(folder) == before[0]:
                return found
    return read()


def _state(folder: Path) -> tuple[bytes, list[str]]:
    """Return the seal of the result in a folder, and the names of files that do not yet replace others."""
    names = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(folder / NEXT))
    return _seal(folder), names


def _seal(folder: Path) -> bytes:
    for _ in range(_TRIES):  # moved between the two system calls
        with (
            contextlib.suppress(OSError),
            open_file(atomic.current(folder, SUMMARY)) as file,
        ):
            return file.read()
    return b""


def _read_csv(content: bytes) -> dict[str, Sequence[str]]:
    """Return column -> cells as strings. Python's float() restores every bit, unlike some versions of pandas."""
    header, *rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
    return dict(
        zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True)
    )


def _floats(words: Sequence[str]) -> np.ndarray:
    return np.array([float(word or "nan") for word in words], np.float64)


def _save_models(history: Any, folder: Path) -> None:
    """Write the states by name, with the data of typed keys."""
    states = {
        name: getattr(history, name)
        for name in STATES
        if getattr(history, name) is not None
    }
    arrays, keys = sealed_folders.named(states), {}
    for name, leaf in arrays.items():
        if isinstance(leaf, jax.Array) and jnp.issubdtype(
            leaf.dtype, jax.dtypes.prng_key
        ):
            keys[name], leaf = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
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
    arrays, facts = (
        sealed_folders.read(folder, alone=True),
        json_files.read_json(folder / SEAL)["facts"],
    )
    sealed_folders.read_sealed(
        folder / SEAL, saved.digest
    )  # last, in case another run has replaced them
    try:
        for name, kind in facts["keys"].items():
            arrays[name] = jax.random.wrap_key_data(arrays[name], impl=kind)
        states = dict.fromkeys(STATES) | {
            state: {} for state in facts["states"]
        }  # also states without arrays
        return states | unflatten_dict(arrays, sep="/")
    except (AttributeError, LookupError, TypeError, ValueError):
        raise DamagedError(f"{SEAL} is not that of a run") from None


def finished(folder: Path) -> list[Path]:
    """Return the finished run folders in a folder, without those of killed writers."""
    found = {path.parent for path in _within(folder, SUMMARY)}
    found = {path.parent if path.name == NEXT else path for path in found}
    return sorted(
        path
        for path in found
        if not any(part.endswith(".writing") for part in path.parts[-2:])
    )


def _within(folder: Path, file: str) -> set[Path]:
    """Return the paths of such a file in a folder and at any depth, also in links to folders, but not below links."""
    return {*folder.glob(file), *folder.rglob(f"*/{file}")}


def unfinished(folder: Path) -> list[Path]:
    """Return the unfinished run folders in a folder, started ones and those in the index of a grid."""
    found = {path.parents[1] for path in _within(folder, "checkpoint/arguments.json")}
    for index in _within(folder, GRID_INDEX):
        with contextlib.suppress(
            DamagedError, AttributeError, TypeError
        ):  # a checksum is no secret
            found |= {
                index.parent / name
                for points in json_files.read_json(index).values()
                for name in points.values()
            }
    return sorted(run for run in found if not is_finished(run))


def _environment() -> dict[str, Any]:
    """Return versions, commits of the package and of the working directory, and devices of this process."""
    devices = jax.devices()
    versions = {
        "python": platform.python_version(),
        "fedjax_srp": __version__,
        "jax": jax.__version__,
    }
    return {
        "versions": {
            **versions,
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
