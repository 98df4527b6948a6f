"""CSV files whose cells no spreadsheet runs as formulas."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"'*(?![+-]?[\d.]+(e[+-]?\d+)?$)[=+@\t\r-]")  # but no number


def as_csv(frame: pd.DataFrame) -> Callable[[Path], object]:
    """Return the writer of a table, for `atomic.replace`.

    `as_cell` escapes its strings.
    """
    frame = frame.rename(columns=as_cell)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(as_cell)
    return lambda path: frame.to_csv(path, index=False, lineterminator="\n")


def as_cell(value: Any) -> Any:
    """Return a cell: a formula gets an apostrophe, a carriage return becomes a line feed.

    The csv module does not quote carriage returns. Values other than strings are unchanged.
    """
    if not isinstance(value, str):
        return value
    if _FORMULA.match(value):
        value = f"'{value}"
    return value.replace("\r", "\n")
