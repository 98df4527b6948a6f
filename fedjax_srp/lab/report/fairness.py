"""Shares of the work: accuracy of the slowest tenth, rounds by client, wasted time, staleness, bytes to a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_srp.base import WASTED_TIME
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import last

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

    `slowest_tenth`: final accuracy of the tenth of the clients with the longest expected times; `gini` of the rounds
    that clients took part in, and `never`, the share of clients without a round; `wasted_time`: sum over the run;
    `staleness`: mean over the rounds with participants; `bytes_to_target`: of all participants, inf unless every run
    reached the target.
    """
    found = {
        "slowest_tenth": [last(run.slowest_scores()) for run in runs],
        "gini": [run.participation.gini for run in runs],
        "never": [run.participation.never for run in runs],
        "wasted_time": [_metric(run, WASTED_TIME, np.sum, run.round > 0) for run in runs],
        "staleness": [
            _metric(run, "staleness", np.mean, run.cohort_size > 0) for run in runs
        ],
        "bytes_to_target": [
            math.inf if math.isnan(target) else run.bytes_to(target) for run in runs
        ],
    }
    return {
        name: float(np.mean(values)) if values else math.nan
        for name, values in found.items()
    }


def _metric(
    run: History, name: str, reduce: Callable[[np.ndarray], Any], counted: np.ndarray
) -> float:
    return (
        float(reduce(run.metrics[name][counted]))
        if name in run.metrics and counted.any()
        else math.nan
    )


def texts(found: dict[str, float]) -> list[str]:
    """Format the result of `shares` for the columns of `HEADER`."""
    percent, plain = (
        (lambda value: _text(100 * value, 1)),
        (lambda value: _text(value, 2)),
    )
    shown = {
        "slowest_tenth": percent,
        "never": percent,
        "bytes_to_target": lambda value: _text(value / 1e6, 2),
    }
    return [shown.get(name, plain)(value) for name, value in found.items()]


def _text(value: float, digits: int) -> str:
    return (
        "-"
        if math.isnan(value)
        else "not reached"
        if math.isinf(value)
        else f"{value:.{digits}f}"
    )
