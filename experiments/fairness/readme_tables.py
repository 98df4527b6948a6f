"""Tables of the README, from the committed results.

python experiments/fairness/readme_tables.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fairness.who_pays import (
    FAIRNESS,
    GROUPS,
    METHODS,
    POLICIES,
    TARGET,
    one_epoch,
)
from experiments.pages import load_results, markdown, pm, reached_mean, write

HERE = Path(__file__).parent
HEADS = {"mean": "all", "worst_tenth": "worst tenth", "slowest_tenth": "slowest tenth"}


def results() -> dict[str, Any]:
    """Load the results of the study."""
    return load_results("fairness/results/who_pays.json")


def percent(runs: Sequence[dict[str, Any]], name: str) -> str:
    """Format a share of each run as mean and standard deviation in percent."""
    return pm([100 * run[name] for run in runs], 1)


def spread_at_target(runs: Sequence[dict[str, Any]]) -> str:
    """Format the spread when the mean reaches the target, of the seeds that reach it."""
    reached = [run for run in runs if run["spread at the target"] != "nan"]
    if not reached:
        return "not reached"
    text = percent(reached, "spread at the target")
    if len(reached) < len(runs):
        text += f" ({len(reached)} of {len(runs)})"
    return text


def time(runs: Sequence[dict[str, Any]], group: str) -> str:
    """Format the mean time of a group to the target, of the seeds that reached it."""
    return reached_mean(np.array([float(run[f"time, {group}"]) for run in runs]))


def methods() -> str:
    """Final accuracies and times of each method with each policy."""
    runs = results()["runs"]
    head = ["method", "cohorts", *(f"{HEADS[group]} %" for group in GROUPS), "spread"]
    rows = [[*head, *(f"time, {HEADS[group]}" for group in GROUPS)]]
    for method in METHODS:
        for policy in POLICIES:
            found = runs[f"{method} | {policy}"]
            cells = [percent(found, name) for name in (*GROUPS, "spread")]
            times = [time(found, group) for group in GROUPS]
            rows.append([method, policy, *cells, *times])
    return markdown(rows)


def fairness() -> str:
    """Final accuracies of q-FedAvg for each q, with five local epochs and with one."""
    head = ["local epochs", "q", "all %", "worst tenth %", "spread", "time, all"]
    rows = [[*head, f"spread at {100 * TARGET:g} %"]]
    names = {5: FAIRNESS, 1: {q: one_epoch(q) for q in FAIRNESS}}
    for epochs, of_epochs in names.items():
        for q, name in of_epochs.items():
            found = results()["runs"][name]
            cells = [percent(found, each) for each in ("mean", "worst_tenth", "spread")]
            cells += [time(found, "mean"), spread_at_target(found)]
            rows.append([f"{epochs}", f"{q:g}", *cells])
    return markdown(rows)


def planted() -> str:
    """IFCA on turned images, for each number of models."""
    head = ["models", "adjusted Rand index", "clusters in use", "all %", "worst tenth %"]
    rows = [[*head, "bytes up", "bytes down"]]
    for num_clusters, found in results()["planted"].items():
        row = [num_clusters, pm([run["adjusted_rand"] for run in found])]
        row.append(pm([run["clusters"] for run in found], 1))
        row += [percent(found, name) for name in ("accuracy", "worst_tenth")]
        row += [f"{found[0][name]:,.0f}" for name in ("bytes_up", "bytes_down")]
        rows.append(row)
    return markdown(rows)


PAGES = {
    HERE / "README.md": {"methods": methods, "fairness": fairness, "planted": planted}
}

if __name__ == "__main__":
    write(PAGES)
