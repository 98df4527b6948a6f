"""Data sets in .npz files: x_train, y_train, x_test, y_test, and whose example each is where people wrote them.

They may say how inputs are scaled (`scale`, `offset`) and how many classes there are (`num_classes`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_srp._checks import checked, nearest
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.records import expanded

_COLUMNS = ("x", "y", "writer", "user")
_FACTS = ("scale", "offset", "num_classes")  # of all examples


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
            known = [key for key in file.files if key.removesuffix("_test").removesuffix("_train") in _COLUMNS]
            columns = {key: file[key] for key in known}
            facts = {key: file[key] for key in file.files if key in _FACTS}
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
        _num_classes(path, facts.get("num_classes")),
        facts.get("scale"),
        facts.get("offset"),
    )


def _num_classes(path: Path, given: np.ndarray | None) -> int | None:
    """The number in a file; its range is looked at where the labels are."""
    if given is None:
        return None
    if given.ndim or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"name={str(path)!r}: num_classes is {given.dtype} of shape {given.shape}; give one whole number"
        )
    return given.item()


@checked
def save(data: FederatedData, path: str | Path) -> None:
    """Writes a federation as an .npz file, for `load`, the command line and grids.

    `load(path)` gives it back: the same clients in the same order, each with the same training and test examples, in
    the same dtype and order, scaled in the same way, and as many classes. Examples that belong to no client are not
    written. The name of the loaded data is that of the file. A file that is there is replaced.

    Args:
        data: as from `load` or `from_arrays`.
        path: of the file, ends in .npz; its folder must be there.

    Raises:
        ValueError: in one line: another ending, no such folder, or what such a file cannot hold: a client without test
            examples (`holdout` can make one), uint8 inputs without a scale (`FederatedData.stored`), a dtype that is
            not NumPy's own (bfloat16), arrays that lie with several processes.
        OSError: the file cannot be written; what was there before stays.

    Example:
        >>> import pathlib, tempfile
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=5)  # pixels are 0..16
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     srp.data.save(data, pathlib.Path(folder) / "mine.npz")
        ...     float(srp.data.load(pathlib.Path(folder) / "mine.npz").scale)
        0.0625
    """
    file = expanded(path)
    if file.suffix != ".npz":
        raise ValueError(f"path={str(path)!r}: must end in .npz, which is how load knows the file")
    if not file.parent.is_dir():
        raise ValueError(f"path={str(path)!r}: no such folder {str(file.parent)!r}; make it first")
    for leaf in jax.tree.leaves(data):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise ValueError("data: lie with several processes; save them before they are spread")
    if data.x_train.dtype.kind not in "iuf":
        raise ValueError(f"data: inputs are {data.x_train.dtype}, which .npz files do not know; make them float32")
    is_scaled = data.scale is not None and data.offset is not None
    if data.x_train.dtype == np.uint8 and not is_scaled:
        raise ValueError("data: uint8 inputs without a scale would be read as pixels; save the data before stored()")
    arrays: dict[str, Any] = {"num_classes": np.asarray(data.num_classes)}
    if is_scaled:
        arrays |= {"scale": np.asarray(data.scale), "offset": np.asarray(data.offset)}
    for kind in ("train", "test"):
        x, y, indices, counts = (
            np.asarray(getattr(data, name)) for name in (f"x_{kind}", f"y_{kind}", f"{kind}_indices", f"{kind}_counts")
        )
        if not counts.all():
            raise ValueError(
                f"data: client {np.argmin(counts)} has no {kind} examples, and load leaves such clients out; save the "
                "data that holdout was given, and load them with validation="
            )
        rows = indices[np.arange(indices.shape[1]) < counts[:, None]]
        arrays |= {
            f"x_{kind}": x[rows],
            f"y_{kind}": y[rows],
            f"user_{kind}": np.repeat(np.arange(len(counts)), counts),
        }
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as stored:
            np.savez(stored, **arrays)
        unfinished.replace(file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
