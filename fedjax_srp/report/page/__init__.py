"""One HTML page for runs: figures and tables that follow a communication cost and a target, chosen in the page.

The page is a file of its own: Bokeh, which draws, and the numbers of all runs are in it, and it may not ask a network.
The numbers are those of `report.table` and of the files; the page adds up times itself, for whatever cost it is asked.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedjax_srp.report.page import data, plots
from fedjax_srp.report.page.data import Comparison

__all__ = ["Comparison", "html", "write"]

_FOOTER = "Written by fedjax-srp report. Times are simulated, in time units; host s is what the simulator needed."


def html(comparisons: Sequence[Comparison], title: str) -> str:
    """The page of comparisons, one shown at a time.

    Args:
        comparisons: one for each table, see `repeats.rows`; runs that were judged by accuracy.
        title: heading of the page.

    Raises:
        ValueError: no comparison, or one without runs.
    """
    if not comparisons or not all(each.rows.runs for each in comparisons):
        raise ValueError("comparisons is empty: give at least one with at least one run")
    library, figures = _drawn_by_bokeh()
    return string.Template(_part("page.html")).substitute(
        title=_escaped(title),
        footer=_FOOTER,
        style=_part("page.css"),
        content=data.packed(comparisons),
        figures=figures,
        bokeh=library,
        numbers=_part("numbers.js"),
        state=_part("state.js"),
        drawing=_part("drawing.js"),
        script=_part("page.js"),
    )


def write(path: Path, comparisons: Sequence[Comparison], title: str = "fedjax_srp report") -> Path:
    """Writes the page of comparisons to a file and returns its path; see `html`."""
    path.write_text(html(comparisons, title), "utf-8", newline="\n")
    return path


@functools.cache
def _drawn_by_bokeh() -> tuple[str, str]:
    """The script of Bokeh and the empty figures as JSON; the same for every page."""
    from bokeh.embed import json_item
    from bokeh.resources import Resources

    items = [json_item(drawn, name) for name, drawn in plots.figures()]  # pyright: ignore[reportArgumentType]
    library = Resources(mode="inline", components=["bokeh"]).js_raw
    return "\n".join(library), json.dumps(items).replace("</", "<\\/")


def _part(name: str) -> str:
    return resources.files("fedjax_srp.report.page").joinpath(name).read_text("utf-8")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
