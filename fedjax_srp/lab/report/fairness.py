"""Shares of the work: the slowest clients' accuracy, rounds by client, wasted time, bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_srp.base import WASTED_TIME
from fedjax_srp.methods import label
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import last

# evaluations that start from a mean which the simulation takes and no client sends
UNSENT_MEANS = {
    ("fedrep", "fine_tune"): "own_head",
    ("fedper", "fine_tune"): "own_head",
    ("lg_fedavg", "fine_tune"): "own_representation",
}
HEADER = (
    "slowest tenth %",
    "Gini",
    "never %",
    "wasted time",
    "staleness",
    "MB to target",
)


def shares(runs: Sequence[History], target: float) -> dict[str, float]:
    """Return means over the runs of a method, nan for values that a run lacks.

    `slowest_tenth`: final accuracy of the tenth of the clients with the longest expected times;
    `gini` of the rounds that clients took part in, and `never`, the share of clients without a
    round; `wasted_time`: sum over the run; `staleness`: mean over the rounds with participants;
    `bytes_to_target`: of all participants, inf unless every run reached the target.
    """
    of_runs = [_shares_of_run(run, target) for run in runs]
    return {
        name: float(np.mean([of_run[name] for of_run in of_runs])) for name in of_runs[0]
    }


def notes_on_unsent_means(rows: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return a note on the rows that are judged by a model that no deployment has."""
    instead: dict[str, dict[str, None]] = {}
    for runs in rows.values():
        history = runs[0].history
        judged_by = (history.config.get("algorithm"), history.evaluation)
        if judged_by in UNSENT_MEANS:
            named = instead.setdefault(UNSENT_MEANS[judged_by], {})
            named[label(history.name)] = None
    return [
        "fine_tune starts from a mean of personal parts that clients never send; "
        f"what clients hold is judged by {evaluation}: {', '.join(names)}"
        for evaluation, names in instead.items()
    ]


def _shares_of_run(run: History, target: float) -> dict[str, float]:
    return {
        "slowest_tenth": last(run.slowest_scores()),
        "gini": run.participation.gini,
        "never": run.participation.never,
        "wasted_time": _metric(run, WASTED_TIME, np.sum, run.round > 0),
        "staleness": _metric(run, "staleness", np.mean, run.cohort_size > 0),
        "bytes_to_target": math.inf if math.isnan(target) else run.bytes_to(target),
    }


def _metric(
    run: History, name: str, reduce: Callable[[np.ndarray], Any], counted: np.ndarray
) -> float:
    if name not in run.metrics or not counted.any():
        return math.nan
    return float(reduce(run.metrics[name][counted]))


def texts(means: dict[str, float]) -> list[str]:
    """Format the result of `shares` for the columns of `HEADER`."""
    return [
        _text(100 * means["slowest_tenth"], 1),
        _text(means["gini"], 2),
        _text(100 * means["never"], 1),
        _text(means["wasted_time"], 2),
        _text(means["staleness"], 2),
        _text(means["bytes_to_target"] / 1e6, 2),
    ]


def _text(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "not reached"
    return f"{value:.{digits}f}"
