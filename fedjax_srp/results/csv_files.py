"""CSV files whose cells no spreadsheet runs as formulas, and no terminal obeys."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_srp.parts.checks import printable, printable_within

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"'*(?![+-]?[\d.]+(e[+-]?\d+)?$)[=+@-]")  # but no number


def as_csv(table: Mapping[str, np.ndarray] | pd.DataFrame) -> Callable[[Path], object]:
    """Return the writer of a table, columns of numbers or texts by name or a frame, for `atomic.replace`.

    `as_cell` escapes its strings. Columns give the bytes of their frame, but a run needs no pandas.
    """
    if not isinstance(table, Mapping):
        frame = _mapped(table, as_cell)
        return lambda path: frame.to_csv(path, index=False, lineterminator="\n")
    columns = []
    for name, values in table.items():
        if values.dtype.kind in "biuf":
            cells = ["" if text == "nan" else text for text in map(str, values)]
        else:
            cells = [as_cell(value) for value in values.tolist()]
        columns.append([as_cell(name), *cells])

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerows(zip(*columns, strict=True))

    return write


def printable_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace the control characters in the names and texts of a table that is written in another format."""
    return _mapped(frame, printable_within)


def _mapped(frame: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    frame = frame.rename(columns=change)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(change)
    return frame


def as_cell(value: Any) -> Any:
    """Return a cell: a formula gets an apostrophe, and control characters are replaced.

    Values other than strings are unchanged.
    """
    if not isinstance(value, str):
        return value
    value = printable(value)
    if _FORMULA.match(value):
        return f"'{value}"
    return value
