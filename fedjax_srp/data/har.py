"""UCI HAR's text files: X_train.txt of 561 features, y_train.txt of 1..6, subject_train.txt of 1..30; likewise test.

The authors' test subjects are others than their training subjects. Here every subject is a
client, and some of each subject's rows are for tests. The path of train/Inertial Signals
stands for the nine signals of 128 steps in place of the features.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.rows import LayoutError, Rows, raw_arrays, reading
from fedjax_srp.parts.files import open_file, read_text

_LAYOUT = "UCI HAR's layout, X_train.txt, y_train.txt and subject_train.txt in train, and likewise test"

SIGNALS = [
    f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
]
_INERTIAL = "Inertial Signals"


def is_har(folder: Path) -> bool:
    """Return True for a folder with train/subject_train.txt, or whose folder "UCI HAR Dataset" has it."""
    return (_root(folder) / "train" / "subject_train.txt").is_file()


def _root(folder: Path) -> Path:
    if _has_signals(folder):
        return folder.parents[1]
    inside = folder / "UCI HAR Dataset"
    return inside if inside.is_dir() else folder


def _has_signals(folder: Path) -> bool:
    return folder.name == _INERTIAL and folder.parent.name == "train"


def _inputs(folder: Path, root: Path, kind: str) -> np.ndarray:
    """Return features, (rows, 561), or signals, (rows, 128, 9)."""
    if not _has_signals(folder):
        return _table(folder, root / kind / f"X_{kind}.txt", float)
    place = root / kind / _INERTIAL
    tables = [_table(folder, place / f"{name}_{kind}.txt", float) for name in SIGNALS]
    with reading(folder, place, _LAYOUT):
        return np.stack(tables, axis=-1)


def read(folder: Path) -> RawArrays:
    """Return the rows of all subjects; classes have the names of activity_labels.txt."""
    root = _root(folder)
    parts = []
    for kind in ("train", "test"):
        x = _inputs(folder, root, kind)
        y = _column(folder, root / kind / f"y_{kind}.txt")
        subjects = _column(folder, root / kind / f"subject_{kind}.txt")
        with reading(folder, root / kind, _LAYOUT):
            if not len(x) == len(y) == len(subjects):
                raise LayoutError(
                    f"X_{kind}.txt or its signals have {len(x)} rows, y_{kind}.txt {len(y)} and "
                    f"subject_{kind}.txt {len(subjects)}; copy the three again"
                )
            parts.append((x, y, subjects))
            if parts[0][0].shape[1] != x.shape[1]:
                raise LayoutError(
                    f"X_{kind}.txt has {x.shape[1]} columns, X_train.txt "
                    f"{parts[0][0].shape[1]}; copy both again"
                )
    rows = Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    names = root / "activity_labels.txt"
    with reading(folder, names, _LAYOUT):
        raw = raw_arrays(rows, None)
        if names.exists():
            raw = raw._replace(class_names=_names(read_text(names), np.unique(rows.y)))
    return raw


def _table(folder: Path, path: Path, kind: type[float] | type[int]) -> np.ndarray:
    """Return the numbers of a text file, (rows, columns)."""
    with reading(folder, path, _LAYOUT), open_file(path) as file:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without rows
            table = np.loadtxt(file, dtype=kind, comments=None, ndmin=2)
        if not table.size:
            raise LayoutError("has no rows; copy it again")
        return table


def _column(folder: Path, path: Path) -> np.ndarray:
    """Return the integers of a text file with one in each line."""
    table = _table(folder, path, int)
    with reading(folder, path, _LAYOUT):
        if table.shape[1] != 1:
            raise LayoutError(
                f"has {table.shape[1]} columns in place of one; copy it again"
            )
    return table[:, 0]


def _names(text: str, classes: np.ndarray) -> tuple[str, ...]:
    """Return the name of each class, from lines such as "1 WALKING"."""
    by_number = {}
    for line in text.splitlines():
        if line.strip():
            number, name = line.split(maxsplit=1)
            if int(number) in by_number:
                raise LayoutError(f"names class {number} twice; copy it again")
            by_number[int(number)] = name.strip()
    return tuple(by_number[number] for number in classes.tolist())
