"""Methods compared in one figure: accuracy over simulated time, one panel for each communication cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_srp.lab.report import drawing, table
from fedjax_srp.lab.report.page.data import Comparison
from fedjax_srp.parts.checks import printable
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results import sealed_folders as storage
from fedjax_srp.results.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT, PANEL = (
    4.5,
    3.9,
)  # in inches: least height of the figure, and height without its legend
FILES = ("table{}.txt", "table{}.csv", "accuracy{}.png", "accuracy{}.pdf")
HIDDEN = 0.8  # largest share of every run that a cut may hide


def figure(
    histories: table.Repeats,
    target: table.Target,
    communications: Sequence[float],
    title: str = "",
) -> Figure:
    """Draw accuracy over simulated time, one panel for each communication cost, and the target as a dotted line.

    A cost that cannot be added to any of the runs has no panel; if none can, there is a panel without cost.

    A panel ends soon after the last run reached the target, or with the longest run if some run never did. If that
    would hide more than 80 % of every run in some panel, all panels show whole runs.
    """
    import matplotlib as mpl

    can_add = any(runs[0].takes_communication for runs in histories.values())
    communications = [cost for cost in communications if can_add or not cost] or [0]
    names, is_known = (
        drawing.evaluation_names(histories, None),
        math.isfinite(target.accuracy),
    )
    is_uneven = len({len(runs) for runs in histories.values()}) > 1
    styles, labels = (
        drawing.styles(histories),
        drawing.labels(histories, None, names, count=is_uneven),
    )
    with mpl.rc_context(drawing.RC):
        width = max(4.4, 3.6 * len(communications))
        drawn = new_figure((width, HEIGHT))
        panels = drawn.subplots(1, len(communications), sharey=True, squeeze=False)[0]
        handles: dict[str, Any] = {}
        notes = [drawing.plain(title)] if title else []
        groups_by_cost = [
            {
                name: runs
                for name, runs in histories.items()
                if not (cost and not runs[0].takes_communication)
            }
            for cost in communications
        ]
        cuts = _cuts(groups_by_cost, target.accuracy, communications)
        for ax, cost, shown, cut in zip(
            panels, communications, groups_by_cost, cuts, strict=True
        ):
            new_handles, new_notes = drawing.draw(
                ax, shown, drawing.accuracy_curve(cost, None), styles, labels
            )
            handles, notes = handles | new_handles, [*dict.fromkeys([*notes, *new_notes])]
            if is_known:
                ax.axhline(target.accuracy, color="#555555", linewidth=1.0, linestyle=":")
            ax.set_title(f"communication cost {table.exact(cost)}")
            ax.set_xlabel(drawing.TIME_LABEL)
            if cut is not None:
                ax.set_xlim(0, cut)
        panels[0].set_ylabel(drawing.score_label(histories, names))
        final = [run.final_accuracy for runs in histories.values() for run in runs]
        lowest = min(
            filter(math.isfinite, final), default=1.0
        )  # every curve ends within the panel
        panels[0].set_ylim(
            max(0.0, min((target.accuracy if is_known else 1.0) - 0.4, lowest - 0.1)), 1.0
        )
        notes += [f"dotted: target of {table.shown(target)}"] * is_known
        ordered = {
            text: handles[text]
            for text in [*labels.values(), *handles]
            if text in handles
        }
        height = drawing.legend_below(
            drawn, ordered, width, notes, loc="outside lower center"
        )
        drawn.set_figheight(max(HEIGHT, PANEL + height))
    return drawn


def files(
    compared: Comparison, folder: Path, suffix: str = ""
) -> tuple[str, dict[Path, Callable[[Path], object]]]:
    """Return a comparison's table as text, and path -> writer of its `FILES`, for `storage.replace`.

    If drawing fails, there are no figures.
    """
    histories, target = compared.rows.histories, compared.target
    frame = table.comparison(
        histories, target.accuracy, compared.communications, compared.rows.twins
    )
    text = printable(
        "\n".join([table.render(frame, target), *compared.rows.notes]), kept="\n"
    )
    cells = table.printable_cells(frame)
    names = [name.format(suffix) for name in FILES]
    written = {
        names[0]: lambda path: path.write_text(text + "\n", "utf-8"),
        names[1]: storage.as_csv(cells),
    }
    draw = functools.cache(
        lambda: figure(histories, target, compared.communications, compared.title)
    )
    for name in names[2:]:
        if (content := run_folder.image(draw, name)) is None:
            break
        written[name] = lambda path, content=content: path.write_bytes(content)
    return text, {folder / name: writer for name, writer in written.items()}


def _cuts(
    groups_by_cost: Sequence[table.Repeats], target: float, costs: Sequence[float]
) -> list[float | None]:
    """Return the end of each panel, soon after the target; None for panels of whole runs."""
    cuts: list[float | None] = []
    for shown, cost in zip(groups_by_cost, costs, strict=True):
        runs = [run for repeats in shown.values() for run in repeats]
        lengths = [float(run.elapsed(cost)[-1]) for run in runs]
        end = 1.25 * max(
            (table.time_to(run, target, cost) for run in runs), default=math.inf
        )
        if 0 < end < (1 - HIDDEN) * min(lengths, default=0.0):
            return [None] * len(groups_by_cost)
        cuts.append(end if 0 < end < max(lengths, default=0.0) else None)
    return cuts
