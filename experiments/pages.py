"""Parts of the READMEs that are written from committed results, never by hand.

A page has `<!-- begin NAME -->` and `<!-- end NAME -->` around such a part. A folder's `readme_tables.py` has a
function for each of them in `PAGES`; `make tables` runs these scripts, and a test compares what they would write with
what is committed.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
Parts = Mapping[str, Callable[[], str]]  # by name


@functools.cache
def load_results(name: str) -> Any:
    """The results of a JSON file."""
    return json.loads((HERE / name).read_text("utf-8"))["results"]


@functools.cache
def csv(name: str) -> pd.DataFrame:
    """A table of results."""
    return pd.read_csv(HERE / name)


def pm(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation over seeds; of one seed without."""
    deviation = f" ± {np.std(values, ddof=1):,.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):,.{digits}f}{deviation}"


def span(found: Mapping[str, Any], place: int | None = None, form: str = ".2g") -> str:
    """Mean, lowest and highest trial, of one point of a curve where there is a place."""
    parts = [found[name] if place is None else found[name][place] for name in ("mean", "lowest", "highest")]
    mean, low, high = (f"{value:{form}}" for value in parts)
    return f"{mean} ({low} to {high})"


def ends(values: Sequence[float], form: str = ".0f") -> str:
    """The lowest and the highest."""
    return f"{min(values):{form}} to {max(values):{form}}"


def markdown(rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown, its head first."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *body))


def wrapped(text: str) -> str:
    """A paragraph, or an item of a list, in lines."""
    indent = "  " * text.startswith("- ")
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def joined(*parts: Callable[[], str]) -> Callable[[], str]:
    """One part of several."""
    return lambda: "\n\n".join(make() for make in parts)


def fill_page(text: str, parts: Parts) -> str:
    """The text of a page with these parts as the results have them.

    Raises:
        ValueError: the page does not have a part's marks once.
    """
    for name, make in parts.items():
        marks = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        made = make()
        text, count = marks.subn(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)
        if count != 1:
            raise ValueError(f"{name}: the page has its marks {count} times; they must stand there once")
    return text


def write(pages: Mapping[Path, Parts]) -> None:
    """Writes these parts of pages anew."""
    for path, parts in pages.items():
        path.write_text(fill_page(path.read_text("utf-8"), parts), "utf-8")
