"""Generated parts of the READMEs, written from committed results and never by hand.

Such a part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. The `PAGES` of a folder's `readme_tables.py`
map each name to the function that writes the part. `make tables` runs these scripts, and a test compares their output
with the committed pages.
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
Parts = Mapping[str, Callable[[], str]]  # name of a part -> function that writes it


@functools.cache
def load_results(name: str) -> Any:
    """Load the `results` of a JSON file."""
    return json.loads((HERE / name).read_text("utf-8"))["results"]


@functools.cache
def csv(name: str) -> pd.DataFrame:
    """Load a table of results."""
    return pd.read_csv(HERE / name)


def pm(values: Sequence[float], digits: int = 2) -> str:
    """Format mean ± standard deviation over seeds; a single seed has no deviation."""
    deviation = f" ± {np.std(values, ddof=1):,.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):,.{digits}f}{deviation}"


def reached_mean(times: np.ndarray) -> str:
    """Format the mean time of the seeds that reached a target, and how many did if some did not."""
    is_reached = np.isfinite(times)
    if not is_reached.any():
        return "not reached"
    text = f"{times[is_reached].mean():,.1f}"
    if not is_reached.all():
        text += f" ({is_reached.sum()} of {len(times)})"
    return text


def span(found: Mapping[str, Any], place: int | None = None, form: str = ".2g") -> str:
    """Format mean (lowest to highest trial); `place` selects one point of a curve."""
    mean, low, high = (
        f"{found[name] if place is None else found[name][place]:{form}}"
        for name in ("mean", "lowest", "highest")
    )
    return f"{mean} ({low} to {high})"


def chosen_steps(rows: pd.DataFrame) -> dict[int, float]:
    """Step size with the lowest mean training loss for each tau, among those with which every trial is finite."""
    losses = rows.groupby(["tau", "step"])["training_loss"].agg(
        lambda of_trials: of_trials.mean(skipna=False)
    )
    return {tau: of_tau.idxmin()[1] for tau, of_tau in losses.dropna().groupby("tau")}


def ends(values: Sequence[float], form: str = ".0f") -> str:
    """Format the lowest and the highest value, as one number if they look alike."""
    lowest, highest = f"{min(values):{form}}", f"{max(values):{form}}"
    return lowest if lowest == highest else f"{lowest} to {highest}"


def markdown(rows: Sequence[Sequence[Any]]) -> str:
    """Format a table in Markdown; the first row is the head."""
    head, *body = rows
    return "\n".join(
        f"| {' | '.join(map(str, cells))} |"
        for cells in (head, ["---"] * len(head), *body)
    )


def wrapped(text: str) -> str:
    """Wrap a paragraph or a list item at 120 columns."""
    indent = "  " * text.startswith("- ")
    return textwrap.fill(
        text,
        120,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def joined(*parts: Callable[[], str]) -> Callable[[], str]:
    """Combine parts into one, with blank lines between them."""
    return lambda: "\n\n".join(make() for make in parts)


def fill_page(text: str, parts: Parts) -> str:
    """Return the text of a page with these parts written anew.

    Raises:
        ValueError: the marks of a part are missing or repeated.
    """
    for name, make in parts.items():
        marks = re.compile(
            f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL
        )
        made = make()
        text, count = marks.subn(
            lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text
        )
        if count != 1:
            raise ValueError(
                f"{name}: the page has its marks {count} times; it must have them once"
            )
    return text


def write(pages: Mapping[Path, Parts]) -> None:
    """Rewrite these parts of the pages."""
    for path, parts in pages.items():
        path.write_text(fill_page(path.read_text("utf-8"), parts), "utf-8")
