"""Data sets in .npz files: x_train, y_train, x_test, y_test, and whose example each is where people wrote them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedjax_srp._checks import nearest
from fedjax_srp.data.raw import RawArrays

_COLUMNS = ("x", "y", "writer", "user")


def files(folder: Path) -> list[Path]:
    """Archives in a folder and one folder below (emnist/digits.npz)."""
    return sorted([*folder.glob("*.npz"), *folder.glob("*/*.npz")])


def read(path: Path) -> RawArrays:
    """Arrays of an .npz file; nothing in it is executed.

    Raises:
        ValueError: in one line: no such file, or what is missing or odd in it.
    """
    if not path.is_file():
        hint = nearest(path.name, [file.name for file in files(path.parent)])
        raise ValueError(f"name={str(path)!r}: no such file{hint}; give the path of an .npz file")
    try:
        with path.open("rb") as stored, np.load(stored, allow_pickle=False) as file:
            columns = {
                key: file[key] for key in file.files if key.removesuffix("_test").removesuffix("_train") in _COLUMNS
            }
    except Exception as error:  # whatever zip files, their compression and the arrays in them have to say
        reason = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in reason:  # NumPy's advice on files of other kinds
            reason = "it has objects in it, or is a file of another kind"
        raise ValueError(
            f"name={str(path)!r}: damaged, or not an .npz file of plain arrays ({reason}); copy it again, or write it "
            "with np.savez"
        ) from error
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in columns]
    if missing:
        raise ValueError(
            f"name={str(path)!r}: lacks {', '.join(missing)}; found {', '.join(columns) or 'none of them'}"
        )
    users: dict[str, np.ndarray] = {}
    for column in ("writer", "user"):
        given = {kind: columns[f"{column}_{kind}"] for kind in ("train", "test") if f"{column}_{kind}" in columns}
        if len(given) == 1:
            (kind,) = given
            other = {"train": "test", "test": "train"}[kind]
            raise ValueError(f"name={str(path)!r}: has {column}_{kind} and no {column}_{other}; give both, or neither")
        for kind, values in given.items():
            if values.shape != columns[f"y_{kind}"].shape:
                raise ValueError(
                    f"name={str(path)!r}: {column}_{kind} has shape {values.shape} and y_{kind} "
                    f"{columns[f'y_{kind}'].shape}; give one user per example"
                )
        users |= given
    return RawArrays(
        columns["x_train"],
        columns["y_train"],
        columns["x_test"],
        columns["y_test"],
        users.get("train"),
        users.get("test"),
    )
