"""HTML page about runs: figures and tables for a cost and a target that the reader chooses.

The page is one file with Bokeh, the plotting library, and the numbers of all runs; it needs no
network. The numbers are those of `report.table` and of the files; the page itself computes times
for any cost.
"""

from __future__ import annotations

import functools
import html
import json
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_srp.lab.report import drawing, repeats, table
from fedjax_srp.lab.report.page import data, plots
from fedjax_srp.lab.report.page.data import Comparison
from fedjax_srp.parts.libraries import LAB, needed_by
from fedjax_srp.results import atomic

if TYPE_CHECKING:
    from fedjax_srp.lab.report.drawing import Histories

FILE = "report.html"  # default name of the file


def report_page(
    histories: Histories,
    path: str | os.PathLike,
    target: float | None = None,
    communications: Sequence[float] = (0, 1, 10),
    title: str = "fedjax_srp report",
) -> Path:
    """Write one HTML page about runs, as `fedjax-srp report` does for folders.

    The page `report` of the manual describes it. Runs are repeats if their configurations differ
    only in the seed, whatever the labels of a dict. The page shows one data set and number of
    clients at a time. Runs without accuracies are left out.

    Args:
        histories: one `History`, a list of them, or a dict of those; of any methods, seeds and
            options.
        path: file to write, of about 1.3 MB plus the data of the runs.
        target: initial target accuracy; None for 95 % of the final accuracy of FedRep, or else of
            the best method.
        communications: costs per communicating round that the table always shows, in time units.
        title: heading of the page.

    Returns:
        The path.

    Raises:
        ValueError: no run with accuracies, the same run twice, an invalid target or cost.
    """
    table.check_target(target)
    table.check_communications(communications)
    flat = [history for runs in drawing.groups(histories).values() for history in runs]
    runs = [
        repeats.of(history, Path(f"histories[{place}]"))
        for place, history in enumerate(flat)
    ]
    tasks, _ = repeats.by_task(runs)
    if not tasks:
        raise ValueError(
            f"histories has no run that was evaluated by accuracy{repeats.why_no_accuracies(flat)}"
        )
    return write(Path(path), compared(tasks, target, communications), title)


def compared(
    tasks: Mapping[str, Sequence[repeats.Run]],
    target: float | None,
    communications: Sequence[float],
) -> list[Comparison]:
    """Return the comparisons of a page, from the tasks of `repeats.by_task`."""
    comparisons = []
    for task, runs in tasks.items():
        rows = repeats.rows(runs)
        if target is None:
            task_target = table.common_target(rows.histories)
        else:
            task_target = table.Target(target, "as asked")
        title = task.replace("_", " ")
        comparisons.append(Comparison(title, rows, task_target, communications))
    return comparisons


def writer(
    comparisons: Sequence[Comparison], title: str = "fedjax_srp report"
) -> Callable[[Path], object]:
    """Return the writer of the page, for `atomic.replace`.

    Args:
        comparisons: one for each table, of runs with accuracies; the page shows one at a time.
        title: heading of the page.
    """
    library, figures = _bokeh()
    text = string.Template(_resource("page.html")).substitute(
        title=html.escape(title, quote=False),
        style=_resource("page.css"),
        content=data.packed(comparisons),
        figures=figures,
        bokeh=library,
        **{
            name: _resource(f"{name}.js")
            for name in ("numbers", "state", "drawing", "page")
        },
    )
    return lambda path: path.write_text(text, "utf-8", newline="\n")


def write(
    path: Path, comparisons: Sequence[Comparison], title: str = "fedjax_srp report"
) -> Path:
    """Write the page to a file, a device or the target of a link, and return the path."""
    write_to = writer(comparisons, title)
    if path.exists() and not path.is_file():
        write_to(path)
    else:
        atomic.replace({path.resolve(): write_to})
    return path


@functools.cache
def _bokeh() -> tuple[str, str]:
    """Return Bokeh's script without the address of MathJax, and the empty figures as JSON."""
    with needed_by("the report page", LAB):
        from bokeh.embed import json_item
        from bokeh.resources import Resources

    items = []
    for name, figure in plots.figures().items():
        element: Any = name  # bokeh declares a type of its own
        items.append(json_item(figure, element))
    library = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    library = re.sub(r'"https?://[^"]*mathjax[^"]*"', '""', library)
    return library, json.dumps(items).replace("</", "<\\/")


def _resource(name: str) -> str:
    return resources.files("fedjax_srp.lab.report.page").joinpath(name).read_text("utf-8")
