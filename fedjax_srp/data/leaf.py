"""Data sets in LEAF's layout: folders train and test of .json files, every example with the user it belongs to.

A file is {"users": [u, ...], "num_samples": [n, ...], "user_data": {u: {"x": [...], "y": [...]}}}. A user may be in
several files. Inputs are numbers, or texts (Sent140). Reading them is slow, so the arrays are kept as for prepared
records (`cache`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.data import text
from fedjax_srp.data.cache import cached, places
from fedjax_srp.data.raw import RawArrays

_TEXT = 4  # its place in an input of Sent140: id, date, query, user, text, and training or test


def folders(data_dir: Path) -> list[Path]:
    """Folders in a folder that have the layout."""
    return sorted(folder for folder in data_dir.glob("*") if is_leaf(folder))


def is_leaf(folder: Path) -> bool:
    """Whether a folder, or its subfolder data (where LEAF's scripts write), has .json files to train on."""
    try:
        return any(_root(folder).glob("train/*.json"))
    except OSError:  # it cannot be looked into
        return False


def read(folder: Path) -> RawArrays:
    """All users of all files.

    Inputs of 784 numbers become images of 28 x 28, and images of 255ths (LEAF's FEMNIST, paper white at 1.0) uint8.
    Texts become tokens (`text`) of the vocabulary of all training texts, and their labels 0, 1, ... in ascending order.

    Args:
        folder: with subfolders train and test, or data/train and data/test.

    Raises:
        ValueError: in one line: no files, a file that is damaged or in another layout.
    """
    root = _root(folder)
    files = {kind: sorted((root / kind).glob("*.json")) for kind in ("train", "test")}
    for kind, found in files.items():
        if not found:
            raise ValueError(
                f"name={str(folder)!r}: no .json files in {root / kind}; give a folder with LEAF's train/*.json and "
                "test/*.json, or the path of an .npz file"
            )
    everything = [*files["train"], *files["test"]]
    arrays = cached(places(root, "leaf"), everything, lambda: _decode(files))
    return RawArrays(
        arrays["x_train"],
        arrays["y_train"],
        arrays["x_test"],
        arrays["y_test"],
        arrays["users_train"],
        arrays["users_test"],
    )


def _root(folder: Path) -> Path:
    return folder / "data" if (folder / "data" / "train").is_dir() else folder


def _decode(files: dict[str, list[Path]]) -> dict[str, np.ndarray]:
    from fedjax_srp.bars import tqdm

    parts: dict[str, list[np.ndarray]] = {}
    with tqdm(total=sum(map(len, files.values())), desc="reading json", unit="file", disable=None, leave=False) as bar:
        for kind, found in files.items():
            for path in found:
                for column, values in _read_file(path).items():
                    parts.setdefault(f"{column}_{kind}", []).append(values)
                bar.update()
    inputs = [*parts["x_train"], *parts["x_test"]]
    shapes = {"text" if x.dtype == object else str(x.shape[1:]) for x in inputs}
    if len(shapes) > 1:
        found = " and ".join(sorted(shapes))
        raise ValueError(f"name={str(files['train'][0].parents[1])!r}: examples of shapes {found}; give one shape")
    if shapes == {"text"}:
        return _tokens({column: np.concatenate(values) for column, values in parts.items()})
    if len({x.dtype for x in inputs}) > 1:  # 255ths in some files only
        for kind in files:
            parts[f"x_{kind}"] = [_as_floats(x) for x in parts[f"x_{kind}"]]
    return {column: np.concatenate(values) for column, values in parts.items()}


def _tokens(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Texts as tokens, and labels (0 and 4, say) as 0, 1, ..."""
    known, classes = text.vocabulary(columns["x_train"]), np.union1d(columns["y_train"], columns["y_test"])
    x = {f"x_{kind}": text.tokens(columns[f"x_{kind}"], known) for kind in ("train", "test")}
    y = {f"y_{kind}": np.searchsorted(classes, columns[f"y_{kind}"]) for kind in ("train", "test")}
    return columns | x | y


def _as_floats(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x


def _read_file(path: Path) -> dict[str, np.ndarray]:
    """Columns x, y and users of one file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _refusal(path, f"is damaged ({error})", "copy or prepare it again") from error
    try:
        users = {user: (content["user_data"][user]["x"], content["user_data"][user]["y"]) for user in content["users"]}
        counts = dict(zip(content["users"], content.get("num_samples", []), strict=False))
        sizes = {user: (len(x), len(y)) for user, (x, y) in users.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise _refusal(path, f"has another layout ({error!r})", "give users, num_samples and user_data") from error
    for user, (num_x, num_y) in sizes.items():
        if num_x != num_y or counts.get(user, num_x) != num_x:
            found = f"{num_x} inputs, {num_y} labels and num_samples {counts.get(user, num_x)}"
            raise _refusal(path, f"has {found} of user {user!r}", "prepare it again")
    owners = np.repeat(np.array(list(users)), [num_x for num_x, _ in sizes.values()])
    x = [example for inputs, _ in users.values() for example in inputs]
    y = [label for _, labels in users.values() for label in labels]
    if not x:
        raise _refusal(path, "has no examples", "remove it")
    return {"x": _inputs(path, x), "y": _labels(path, y), "users": owners}


def _refusal(path: Path, problem: str, remedy: str) -> ValueError:
    return ValueError(f"name={str(path.parents[1])!r}: {path.parent.name}/{path.name} {problem}; {remedy}")


def _first_leaf(x: Any) -> Any:
    while isinstance(x, list) and x:
        x = x[0]
    return x


def _inputs(path: Path, x: list[Any]) -> np.ndarray:
    """(n, ...) numbers, or (n,) texts as objects."""
    if isinstance(_first_leaf(x), str):
        return _texts(path, x)
    try:
        return _numbers(np.array(x, np.float64))
    except (ValueError, TypeError) as error:
        raise _refusal(path, f"has inputs that are no table of numbers ({error})", "prepare it again") from error


def _texts(path: Path, x: list[Any]) -> np.ndarray:
    texts = [given[_TEXT] if isinstance(given, list) and len(given) > _TEXT else given for given in x]
    for given in texts:
        if not isinstance(given, str):
            remedy = "give texts, or lists of id, date, query, user and text as LEAF's Sent140"
            raise _refusal(path, f"has the input {str(given)[:40]!r} among texts", remedy)
    return np.array(texts, object)


def _numbers(x: np.ndarray) -> np.ndarray:
    """(n, ...) float32, or uint8 (n, 28, 28) where that loses nothing."""
    if x.shape[1:] != (784,):
        return x.astype(np.float32)
    pixels = np.rint(255 * x)
    if np.abs(255 * x - pixels).max() < 1e-3 and pixels.min() >= 0 and pixels.max() <= 255:
        x = pixels.astype(np.uint8)
    else:
        x = x.astype(np.float32)
    return x.reshape(-1, 28, 28)


def _labels(path: Path, y: list[Any]) -> np.ndarray:
    """(n,) int64 of integers, which may be strings ("4") or floats (4.0)."""
    labels = np.empty(len(y), np.int64)
    for place, given in enumerate(y):
        try:
            labels[place] = int(given)
            is_integer = labels[place] == float(given)
        except (ValueError, TypeError, OverflowError):
            is_integer = False
        if not is_integer:
            raise _refusal(path, f"has the label {str(given)[:40]!r}, which is no integer", "number the classes from 0")
    return labels
