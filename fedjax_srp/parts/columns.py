"""Columns of `history.csv`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey

from fedjax_srp.parts.checks import printable

ROUND_COLUMNS = {  # name -> type in memory
    "round": np.int64,
    "stage": np.int64,
    "cohort_size": np.int64,
    "compute_time": np.float64,
    "communicated": np.bool_,
    "finite": np.bool_,
}
LOG_COLUMNS = ("name", "run", "seed")  # of `Progress.rows`, before those of `history.csv`


class Metrics(dict[str, Any]):
    """Metrics of a run by name; the error for a missing one lists the recorded ones."""

    def __missing__(self, name: object) -> Any:
        known = printable(", ".join(self)) or "none"
        raise KeyError(
            f"{name!r} was not recorded: there is {known}; record_loss=True adds the loss"
        )


jax.tree_util.register_pytree_with_keys(  # an unregistered subclass of dict is a leaf to JAX
    Metrics,
    lambda metrics: (
        [(DictKey(name), metrics[name]) for name in sorted(metrics)],
        tuple(sorted(metrics)),
    ),
    lambda names, values: Metrics(zip(names, values, strict=True)),
)


def check_metric_names(
    where: str, metrics: Iterable[str], evaluations: Iterable[str]
) -> None:
    """Raise a ValueError if a metric has the name of a column of `history.csv` or of the rows of a log."""
    columns = {
        *ROUND_COLUMNS,
        *LOG_COLUMNS,
        "elapsed",
        *map(accuracy_column, evaluations),
    }
    if clash := sorted(columns & set(metrics)):
        of = "logs (srp.watch)" if clash[0] in LOG_COLUMNS else "history.csv"
        raise ValueError(
            f"{where} has {clash[0]!r}, which is a column of {of} already: rename the metric"
        )
    of_column = {printable(name): name for name in metrics}
    for name in metrics:
        other = of_column[printable(name)]
        if other != name:
            raise ValueError(
                f"{where} has {name!r} and {other!r}, which differ in control characters alone: rename one"
            )


def accuracy_column(evaluation: str) -> str:
    """Return the column of `history.csv` with the mean score of an evaluation."""
    return f"accuracy_{evaluation}"
