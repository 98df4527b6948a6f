"""Folder of a run, for `History.save` and `History.load`.

Files are CSV and strict JSON, with every bit of the floats. `history.csv` of a resumed run equals that of an
uninterrupted one, so host timings are in `summary.json`. That file is the seal of the folder: it is written last, with
the checksums of the others.
"""

from __future__ import annotations

import contextlib
import csv
import io
import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from fedjax_srp._version import __version__
from fedjax_srp.parts.columns import ROUND_COLUMNS, accuracy_column
from fedjax_srp.results import sealed_folders as storage
from fedjax_srp.results.commits import commits

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("config.json", "history.csv", "clients.csv")
FIGURE = "accuracy.png"
SUMMARY = "summary.json"
MODELS = "models"  # subfolder
STATES = ("server_state", "client_states")
SECONDS = (
    "seconds_per_round",
    "compile_seconds",
    "host_seconds",
)  # of the simulator; not in `history.csv`
GRID_INDEX = (
    "grid.json"  # in the folder of a grid: unit id -> point id -> name of the run folder
)
_WORDS: dict[type, Callable[[str], Any]] = {
    np.int64: int,
    np.float64: lambda word: float(word or "nan"),
    np.bool_: {"True": True, "False": False}.__getitem__,
}


def write(
    history: Any, folder: Path, target: float | None, communication: float, models: bool
) -> Path:
    """Write the folder of a run and replace existing tables, see `History.save`."""
    if models and history.server_state is None:
        raise ValueError(
            "models=True: this history has no server_state; simulate again, or load a run saved with it"
        )
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
    writers = [
        storage.as_json(config),
        storage.as_csv(history.to_frame()),
        storage.as_csv(history.clients_frame()),
    ]
    write_to: dict[str, Any] = dict(zip(TABLES, writers, strict=True))
    digests: dict[str, Any] = {}

    def recorded(path: Path) -> None:
        write_to[path.name](path)
        digests.update(storage.digests(path.parent, [path]))

    files: dict[str, Callable[[Path], object]] = dict.fromkeys(TABLES, recorded)
    if figure is not None:
        files[FIGURE] = lambda path: path.write_bytes(figure)
    models_folder = storage.writable(folder, "directory") / MODELS
    if models:
        storage.check_not_foreign(models_folder)
    source = vars(history).get(MODELS)  # the folder from which they were loaded
    is_source = (
        source is not None
        and source.exists()
        and models_folder.exists()
        and source.samefile(models_folder)
    )

    def seal(
        path: Path,
    ) -> None:  # the last file: the others are written, but none has replaced another
        storage.as_json({**summary, "files": digests})(path)
        (folder / SUMMARY).unlink(missing_ok=True)  # exists only in a complete folder
        if figure is None:
            (folder / FIGURE).unlink(missing_ok=True)
        if models:
            _save_models(history, models_folder)
        elif not is_source and not storage.is_foreign(models_folder):
            storage.remove(models_folder)

    storage.replace(
        {folder / name: writer for name, writer in {**files, SUMMARY: seal}.items()}
    )
    return folder


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
            content = (folder / name).read_bytes()
            is_cut = (
                not content or b'"environment": {' in content
            )  # its end, with the checksum, may be missing
            return "" if is_cut or storage.has_checksum(folder / name) else name
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


def load(folder: Path) -> dict[str, Any]:
    """Return the fields of the saved `History` without its states, after verifying every byte.

    Raises:
        FileNotFoundError: a file of the run is missing.
        DamagedError: a file is damaged.
    """
    for name in (*TABLES, SUMMARY):
        if not (folder / name).is_file():
            hint = "run it again, it was killed while saving"
            if name == TABLES[0]:
                hint = "give the folder that History.save or a command with --out wrote"
            raise FileNotFoundError(
                f"{str(folder)!r} holds no complete run: {name} is missing; {hint}"
            )
    try:
        summary = storage.read_json(folder / SUMMARY)
        storage.check(folder, summary["files"])
        config = storage.read_json(folder / TABLES[0])
    except storage.DamagedError as error:
        raise storage.DamagedError(
            f"{str(folder)!r} is damaged ({error}): run it again, or give a copy"
        ) from None
    rounds, clients = _read_csv(folder / "history.csv"), _read_csv(folder / "clients.csv")
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
        **{
            name: config[name]
            for name in (
                "config",
                "environment",
                "asynchronous",
                "communication_included",
            )
        },
        "name": config["name"]
        .encode(errors="replace")
        .decode(),  # replaces lone surrogates
        "client_time": _floats(clients["expected_time"][:num_clients]),
        "metrics": {
            name: _floats(rounds[storage.as_cell(name)]) for name in config["metrics"]
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


def _read_csv(path: Path) -> dict[str, Sequence[str]]:
    """Return column -> cells as strings. Python's float() restores every bit, unlike some versions of pandas."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
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
    arrays, keys = storage.named(states), {}
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
    storage.write(folder, arrays, facts, alone=True)


def load_models(folder: Path) -> dict[str, Any]:
    """Return the saved states, as dicts of NumPy arrays."""
    from flax.traverse_util import unflatten_dict

    try:
        arrays, facts = (
            storage.read(folder, alone=True),
            storage.read_json(folder / storage.SEAL)["facts"],
        )
    except storage.DamagedError as error:
        raise ValueError(
            f"{str(folder)!r} is damaged ({error}): save the run again with models=True"
        ) from None
    for name, kind in facts["keys"].items():
        arrays[name] = jax.random.wrap_key_data(arrays[name], impl=kind)
    states = dict.fromkeys(STATES) | {
        state: {} for state in facts["states"]
    }  # also states without arrays
    return states | unflatten_dict(arrays, sep="/")


def finished(folder: Path) -> list[Path]:
    """Return the finished run folders in a folder, without temporary ones of `storage.replace`, perhaps killed."""
    return sorted(
        path.parent
        for path in _within(folder, SUMMARY)
        if path.parent.suffix != ".writing"
    )


def _within(folder: Path, file: str) -> set[Path]:
    """Return the paths of such a file in a folder and at any depth, also in links to folders, but not below links."""
    return {*folder.glob(file), *folder.rglob(f"*/{file}")}


def unfinished(folder: Path) -> list[Path]:
    """Return the unfinished run folders in a folder, started ones and those in the index of a grid."""
    found = {path.parents[1] for path in _within(folder, "checkpoint/arguments.json")}
    for index in _within(folder, GRID_INDEX):
        with contextlib.suppress(storage.DamagedError):
            found |= {
                index.parent / name
                for points in storage.read_json(index).values()
                for name in points.values()
            }
    return sorted(run for run in found if not (run / SUMMARY).is_file())


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
