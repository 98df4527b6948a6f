"""`read_partition`: who has which rows, from a CSV or JSON file, or from FL-bench's partition.pkl."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.data import pickles
from fedjax_srp.data.records import expand_user
from fedjax_srp.data.rows import (
    TEST_FRACTION,
    LayoutError,
    dict_of_unique_keys,
    draw_test_rows,
    reading,
    sort_key,
)
from fedjax_srp.parts.checks import checked, short
from fedjax_srp.parts.files import open_file, read_text

_SUFFIXES = (".csv", ".json", ".pkl")
_SPLITS = ("train", "test")
_VALIDATION = "val"  # as in FL-bench: trained on
_LAYOUT = "a layout of srp.data.read_partition: .csv with columns client,split,row, .json or .pkl"


class PartitionFile(NamedTuple):
    """The rows of each client by name, 2 before 10."""

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    # rows are those of training and test examples put end to end, as FL-bench counts them
    is_of_all: bool


def is_partition_file(partition: str) -> bool:
    """Return True for a path of a partition, where else a name is expected."""
    return partition.endswith(_SUFFIXES)


@checked
def read_partition(path: str | Path) -> PartitionFile:
    """Return each client's rows from a file.

    For `from_arrays`, give `train` and `test` as `train_indices` and `test_indices`; if
    `is_of_all`, they are rows of `x = np.concatenate([x_train, x_test])`.
    `load(..., partition=path)` does this for a data set.

    Args:
        path: of a file in one of these layouts.

            - .csv with columns `client,split,row`, a line for each example; split is train
              or test, and rows count from 0 within their split.
            - .json, `{"train": {"ann": [0, 4], ...}, "test": {"ann": [2], ...}}`, or lists
              of lists in place of the inner dicts; or `{"ann": {"train": [0, 4], "test":
              [2]}, ...}`.
            - .csv with columns `client,row`, or .json `{"ann": [0, 4], ...}` or a list of
              lists: rows of training examples. `test` is empty then, and `load` holds out a
              fifth of each client's rows for tests, or `test_fraction`.
            - .pkl of FL-bench, `{"data_indices": [{"train": ..., "test": ...}, ...], ...}`;
              also as .json. Nothing in a pickle is run.

            Rows for validation, under "val" beside "train" and "test", are added to those for
            training.

    Raises:
        ValueError: a file of another layout; a client without training or test rows.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "parts.csv"
        ...     _ = file.write_text("client,split,row\\nann,train,0\\nann,train,2\\nann,test,1\\n")
        ...     read_partition(file).train
        {'ann': array([0, 2])}
    """
    file = expand_user(path)
    where = f"partition={str(path)!r}"
    is_of_all = False
    with reading(file, file, _LAYOUT, "partition"):
        if file.suffix == ".csv":
            parts = _of_csv(read_text(file))
        elif file.suffix in _SUFFIXES:
            content = _content(file)
            is_of_all = isinstance(content, Mapping) and "data_indices" in content
            if is_of_all:
                parts = _by_client(_named(content["data_indices"]))
            else:
                parts = _of_json(content)
        else:
            raise LayoutError(f"ends in {file.suffix!r}, not in {', '.join(_SUFFIXES)}")
        clients = sorted({**parts["train"], **parts["test"]}, key=sort_key)
        numbers = {}
        for kind in _SPLITS if parts["test"] else _SPLITS[:1]:
            numbers[kind] = {}
            for client in clients:
                own = parts[kind].get(client, [])
                numbers[kind][client] = _rows(client, kind, own)
    if not numbers["train"]:
        raise ValueError(f"{where}: has no clients; give one or more")
    for kind, of_clients in numbers.items():
        empty = [client for client, rows in of_clients.items() if not len(rows)]
        if empty:
            raise ValueError(
                f"{where}: clients {short(empty)} have no {kind} rows; give them some, or "
                "leave the clients out (of clients split by user, srp.data.holdout_clients)"
            )
        _check_once(where, kind, of_clients)
    return PartitionFile(numbers["train"], numbers.get("test", {}), is_of_all)


def _check_once(where: str, kind: str, of_clients: Mapping[str, np.ndarray]) -> None:
    """Raise a ValueError if a row is listed twice, for one client or for two."""
    names = [*of_clients]
    together = np.concatenate([*of_clients.values()])
    rows, number = np.unique(together, return_counts=True)
    if (number == 1).all():
        return
    row = rows[np.argmax(number > 1)]
    owners = np.repeat(names, [len(own) for own in of_clients.values()])
    first, second = owners[together == row][:2].tolist()
    problem = f"is listed for clients {first!r} and {second!r}"
    if first == second:
        problem = f"is listed twice for client {first!r}"
    raise ValueError(
        f"{where}: {kind} row {row} {problem}; give each row to one client, once"
    )


def with_tests(found: PartitionFile, fraction: float | None) -> PartitionFile:
    """Hold out a share of each client's rows for tests, a fifth by default; refuse clients of one row."""
    if fraction is None:
        fraction = TEST_FRACTION
    parts: list[dict[str, np.ndarray]] = [{}, {}]
    for client, rows in found.train.items():
        is_test = draw_test_rows(np.zeros(len(rows)), fraction, seed=0)
        if not is_test.any():
            raise ValueError(
                f"partition: client {client!r} has one row and the file no test rows; give "
                "it two or more, or a column split"
            )
        parts[0][client] = rows[~is_test]
        parts[1][client] = rows[is_test]
    return found._replace(train=parts[0], test=parts[1])


def _content(file: Path) -> Any:
    if file.suffix == ".json":
        return json.loads(read_text(file), object_pairs_hook=dict_of_unique_keys)
    with open_file(file) as stored:
        return pickles.load(stored)


def _of_csv(text: str) -> dict[str, dict[str, list[int]]]:
    lines = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    columns = [column.strip().lower() for column in lines.fieldnames or ()]
    if not {"client", "row"} <= set(columns):
        raise ValueError(f"its columns are {', '.join(columns) or 'none'}")
    named = [column for column in columns if column]
    if len({*named}) < len(named):
        raise ValueError(f"two of its columns {', '.join(columns)} have one name")
    lines.fieldnames = columns
    parts: dict[str, dict[str, list[int]]] = {"train": {}, "test": {}}
    for number, line in enumerate(lines, start=2):
        client = str(line["client"] or "").strip()
        split = str(line.get("split", "train") or "").strip()
        row = str(line["row"] or "").strip()
        if None in line:  # of what is beyond the columns
            raise ValueError(
                f"line {number} has more entries than the {len(columns)} columns"
            )
        if split not in parts:
            raise ValueError(f"line {number} has the split {split!r}, not train or test")
        if not client or "\0" in client or not (row.isascii() and row.isdecimal()):
            raise ValueError(f"line {number} has client {client!r} and row {row!r}")
        parts[split].setdefault(client, []).append(int(row))
    if "split" in columns and not parts["test"]:
        raise ValueError("no line has the split test")
    return parts


def _of_json(content: Any) -> dict[str, dict[str, Any]]:
    found = _named(content)
    if {*_SPLITS}.isdisjoint(found):
        if any(isinstance(own, Mapping) for own in found.values()):
            return _by_client(found)
        return {"train": found, "test": {}}
    _check_splits("it", found)
    parts = {kind: _named(found[kind]) for kind in _SPLITS}
    for client, own in _named(found.get(_VALIDATION, {})).items():
        parts["train"][client] = [*parts["train"].get(client, ()), *own]
    if not parts["test"]:
        raise ValueError("no client has test rows")
    return parts


def _check_splits(owner: str, found: Any) -> None:
    """Refuse keys that are no split, whose rows would be lost."""
    others = {*found} - {*_SPLITS, _VALIDATION}
    if others:
        raise ValueError(
            f"{owner} has {short(sorted(map(str, others)))} beside train, test and val"
        )


def _named(clients: Any) -> dict[str, Any]:
    """Return a dict by name of a dict, or of a list, whose names are 0, 1, ..."""
    if isinstance(clients, list):
        clients = dict(enumerate(clients))
    if not isinstance(clients, Mapping):
        raise ValueError(f"it has {short(clients)} in place of clients")
    return {str(client): rows for client, rows in clients.items()}


def _by_client(clients: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of clients that are dicts of train, test and perhaps val, as in FL-bench."""
    parts: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for client, own in clients.items():
        _check_splits(f"client {client!r}", own)
        train = [*own["train"], *own.get(_VALIDATION, ())]
        parts["train"][str(client)] = train
        parts["test"][str(client)] = own["test"]
    return parts


def _rows(client: str, kind: str, rows: Any) -> np.ndarray:
    """Return row numbers, or raise a ValueError."""
    numbers = np.asarray(rows)
    is_empty = numbers.shape == (0,)
    is_integer = np.issubdtype(numbers.dtype, np.integer) and numbers.ndim == 1
    if not (is_empty or is_integer) or (numbers < 0).any():
        raise ValueError(f"client {client!r} has {kind} rows {short(rows)}")
    return numbers.astype(np.int64)
