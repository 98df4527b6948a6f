"""Shares of the work: the slowest clients' accuracy, rounds by client, wasted time, bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_srp.base import WASTED_TIME
from fedjax_srp.messages.wrapper import Wrapper
from fedjax_srp.methods import label
from fedjax_srp.parts.description import PART
from fedjax_srp.parts.part import KNOWN
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import Of, last

# name of an algorithm and its evaluation that starts from a mean which the simulation takes and no client sends
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
    `bytes_to_target`: of all participants, inf unless every run reached the target. Besides,
    `slowest_tenth_std`, the sample standard deviation over the runs; `slowest_tenth_clients`, their
    number; and `reached_at_once`, the number of runs whose first evaluation had reached the target,
    so that time and bytes are upper bounds.
    """
    of_runs = [_shares_of_run(run, target) for run in runs]
    means = {}
    for name in of_runs[0]:
        means[name] = float(np.mean([of_run[name] for of_run in of_runs]))
    slowest = [of_run["slowest_tenth"] for of_run in of_runs]
    means |= mean_and_std("slowest_tenth", slowest)
    means["slowest_tenth_clients"] = runs[0].group_size("slowest_tenth")
    means["reached_at_once"] = num_at_once(runs, target)
    return means


def mean_and_std(column: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean of values under the name of a column, and their sample standard deviation as `<column>_std`.

    The deviation is nan for one value or a mean that is not finite.
    """
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    std = math.nan
    if len(array) > 1 and math.isfinite(mean):
        std = float(array.std(ddof=1))
    return {column: mean, f"{column}_std": std}


def num_at_once(runs: Sequence[History], target: float, of: Of = "mean") -> int:
    """Return the number of runs whose first evaluation, at a finite time, reached the target."""
    if math.isnan(target):
        return 0
    first = [run.eval_elapsed()[:1] for run in runs if run.reached(target, of=of) == 0]
    return int(np.isfinite(first).sum())


def notes_on_unsent_means(rows: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return a note on the rows that are judged by a model that no deployment has."""
    instead: dict[str, dict[str, None]] = {}
    for runs in rows.values():
        history = runs[0].history
        algorithm = getattr(_algorithm_of(history), "name", "")
        judged_by = (algorithm, history.evaluation)
        if judged_by in UNSENT_MEANS:
            named = instead.setdefault(UNSENT_MEANS[judged_by], {})
            named[label(history.name)] = None
    return [
        "the evaluation fine_tune starts from a mean of personal parts that clients never send; "
        f"what clients hold is judged by {evaluation}: {', '.join(names)}"
        for evaluation, names in instead.items()
    ]


def notes_on_fresh_updates(rows: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return a note on the rows whose rounds overlap although no update is stale."""
    names: dict[str, None] = {}
    for runs in rows.values():
        history = runs[0].history
        algorithm = _algorithm_of(history)
        policy = _class_of(_method_of(history).get("participation"))
        trains_on_old = getattr(algorithm, "asynchronous", False)
        is_stale = trains_on_old or "staleness" in history.metrics
        if algorithm is not None and policy is not None:
            is_stale &= algorithm.jobs_by in policy.jobs_by  # else that of another job
        if history.asynchronous and not is_stale:
            names[label(history.name)] = None
    if not names:
        return []
    return [
        "updates are never stale, which flatters an asynchronous server: a client trains on the "
        f"model of the round in which it delivers, or of another job: {', '.join(names)}"
    ]


def _algorithm_of(history: History) -> Any:
    """Return the class of the recorded algorithm, within codes and privacy; None if it is unknown."""
    described: Any = _method_of(history).get("algorithm")
    found = _class_of(described)
    while found is not None and issubclass(found, Wrapper):
        described = described.get("algorithm")
        found = _class_of(described)
    return found


def _method_of(history: History) -> Mapping[str, Any]:
    return history.config.get("method") or {}


def _class_of(described: Any) -> Any:
    """Return the class of a recorded part; None without a record, or if it is unknown."""
    is_part = isinstance(described, Mapping)
    return KNOWN.get(str(described.get(PART))) if is_part else None


def _shares_of_run(run: History, target: float) -> dict[str, float]:
    return {
        "slowest_tenth": last(run.slowest_scores()),
        "gini": run.participation.gini,
        "never": run.participation.never,
        "wasted_time": _metric(run, WASTED_TIME, np.sum, run.round > 0),
        "staleness": _metric(run, "staleness", np.mean, run.cohort_size > 0),
        "bytes_to_target": _bytes_to(run, target),
    }


def _bytes_to(run: History, target: float) -> float:
    index = None if math.isnan(target) else run.reached(target)
    return math.inf if index is None else float(run.eval_bytes()[index])


def _metric(
    run: History, name: str, reduce: Callable[[np.ndarray], Any], counted: np.ndarray
) -> float:
    if name not in run.metrics or not counted.any():
        return math.nan
    return float(reduce(run.metrics[name][counted]))


def texts(means: dict[str, float]) -> list[str]:
    """Format the result of `shares` for the columns of `HEADER`."""
    megabytes = means["bytes_to_target"] / 1e6
    to_target = _text(megabytes, 2)
    if means["reached_at_once"] and math.isfinite(megabytes):
        to_target = f"≤ {to_target}"
    num_slowest = int(means["slowest_tenth_clients"])
    clients = "1 client" if num_slowest == 1 else f"{num_slowest} clients"
    slowest = _text(100 * means["slowest_tenth"], 1)
    if not math.isnan(means["slowest_tenth_std"]):
        slowest += f" ± {_text(100 * means['slowest_tenth_std'], 1)}"
    return [
        f"{slowest} ({clients})",
        _text(means["gini"], 2),
        _text(100 * means["never"], 1),
        _text(means["wasted_time"], 2),
        _text(means["staleness"], 2),
        to_target,
    ]


def _text(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "not reached"
    return f"{value:.{digits}f}"
