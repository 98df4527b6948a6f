"""The tables of the README, from the files of results: `table1.py --summarize` writes them, a test compares.

The README has `<!-- begin NAME -->` and `<!-- end NAME -->` around a table that is made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import doubling_table
import rivals_table
from rivals import COLUMNS


def by_epochs(facts: Mapping[str, Any]) -> str:
    """Figure 5: a row a curve, a column a number of epochs, means with the lowest and highest trial."""
    curves = facts["results"]
    epochs = next(iter(curves.values()))["x"]
    rows = [["local epochs", *(f"{int(e)}" for e in epochs)]]
    for label, curve in curves.items():
        values = zip(curve["mean"], curve["lowest"], curve["highest"], strict=True)
        rows.append([label, *(f"{mean:.1f} ({low:.1f} to {high:.1f})" for mean, low, high in values)])
    return rivals_table.markdown(rows).rstrip()


def new_clients(facts: Mapping[str, Any]) -> str:
    """Figure 6: a row a method, after 1, 5 and all epochs of every panel."""
    panels = facts["results"]
    first = next(iter(panels.values()))
    last = int(next(iter(first.values()))["x"][-1])
    shown = [epochs for epochs in (1, 5, last) if epochs <= last]
    rows = [["representation of", *(f"{panel}, {e} epoch{'s' * (e > 1)}" for panel in panels for e in shown)]]
    for label in first:
        cells = []
        for curves in panels.values():
            curve = curves[label]
            for e in shown:
                place = [int(x) for x in curve["x"]].index(e)
                mean, low, high = (curve[what][place] for what in ("mean", "lowest", "highest"))
                cells.append(f"{mean:.1f} ({low:.1f} to {high:.1f})")
        rows.append([label, *cells])
    return rivals_table.markdown(rows).rstrip()


def table1(facts: Mapping[str, Any]) -> str:
    """Table 1, with what is compared below it."""
    columns = {name: column for of_scale in COLUMNS.values() for name, column in of_scale.items()}
    return rivals_table.tables(facts["runs"], columns)


def ablation(facts: Mapping[str, Any]) -> str:
    """Columns of table 1 in the ways that the text leaves open."""
    return rivals_table.ablation(facts["runs"], COLUMNS["ablation"])


def differences(facts: Mapping[str, Any]) -> str:
    """Where table 1 is far from the paper on CIFAR-10, and what the authors' options make of it."""
    return rivals_table.markdown(rivals_table.far_table(facts["runs"], COLUMNS["ablation"])).rstrip()


def doubling(facts: Mapping[str, Any]) -> str:
    """What doubling buys."""
    return doubling_table.table(facts["results"])


TABLES: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {  # marks -> file of results, what it becomes
    "table1": ("table1.json", table1),
    "differences": ("ablation.json", differences),
    "ablation": ("ablation.json", ablation),
    "figure5": ("figure5.json", by_epochs),
    "figure6": ("figure6.json", new_clients),
    "figure6_femnist": ("figure6_femnist.json", new_clients),
    "doubling": ("doubling_table.json", doubling),
    "doubling_3": ("doubling_table_3.json", doubling),
}


def page(text: str, results: Path) -> str:
    """A README with its tables as the files have them; a table without a file says so."""
    for name, (file, make) in TABLES.items():
        path = results / file
        made = make(json.loads(path.read_text("utf-8"))) if path.is_file() else "Not run yet."
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, b=begin, m=made, e=end: f"{b}\n{m}\n{e}", text, flags=re.DOTALL)
    return text
