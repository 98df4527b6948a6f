"""Times to the target of groups of clients: the slowest and the worst tenth, and quarters by speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedjax_srp.lab.report import fairness, table
from fedjax_srp.results.measures import GROUPS

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "mean": "all clients",
    "worst_tenth": "worst tenth",
    "slowest_tenth": "slowest tenth",
    "fastest_quarter": "fastest quarter",
    "second_quarter": "2nd quarter",
    "third_quarter": "3rd quarter",
    "slowest_quarter": "slowest quarter",
}


def frame(
    histories: table.Repeats, target: float, communications: Sequence[float]
) -> pd.DataFrame:
    """Return a table with a row per method and group of clients, see `History.group_scores`.

    Columns: `method`; `of`, the group; `clients`, its number of clients with test points; `runs`;
    `target`; `reached`, the number of runs in which the group's mean accuracy reached it;
    `reached_at_once`, of these, the number of upper bounds, as the first evaluation had reached it;
    for every cost C `time_C`, the mean (inf unless every run reached the target, nan if the cost
    cannot be added), and `time_C_std`, the sample standard deviation.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for method, runs in histories.items():
        for of in GROUPS:
            times = [table.time_to(run, target, of=of) for run in runs]
            row: dict[str, Any] = {
                "method": method,
                "of": of,
                "clients": runs[0].group_size(of),
                "runs": len(runs),
                "target": target,
                "reached": sum(map(math.isfinite, times)),
                "reached_at_once": fairness.num_at_once(runs, target, of),
            }
            for cost in communications:
                times = [table.time_to(run, target, cost, of) for run in runs]
                row |= fairness.mean_and_std(f"time_{table.exact(cost)}", times)
            rows.append(row)
    return pd.DataFrame(rows)


def render(times: pd.DataFrame, target: table.Target) -> str:
    """Return the times at the first cost as text, a line for each method and a column for each group."""
    costs = [name for name in times.columns if name.startswith("time_")]
    cost = costs[0].removeprefix("time_")
    sizes = dict(zip(times["of"], times["clients"], strict=True))
    header = ["method", *(f"{LABELS[of]} ({sizes[of]})" for of in GROUPS)]
    lines = [header]
    for method, rows in times.groupby("method", sort=False):
        cells = [table.time_text(row, cost) for row in rows.to_dict("records")]
        lines.append([table.named(str(method)), *cells])
    title = (
        f"time at C = {cost} until the mean accuracy of a group reaches {table.shown(target)}; "
        "in brackets: the number of its clients"
    )
    if sum(times["reached_at_once"]):
        title += "; ≤: reached by the first evaluation, maybe sooner"
    return "\n".join([title, "", *table.ruled(table.aligned(lines))])
