"""Tables of the runs of `answers.py`: one row for each run, cost and evaluation, and curves over time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedjax_srp as srp

PHONE_SLOWDOWN = (
    100  # factor on the times of phones that come and go, so that a round spans sessions
)
COSTS = (0.0, 1.0, 10.0)  # mean times of a client
MAIN_EVALUATION = {
    "FedAvg": "fine_tune",
    "FedRep": "fine_tune",
    "Ditto": "own_model",
    "LG": "fine_tune",
    "FedPer": "fine_tune",
}
CLASSES = 5  # of each client in the figure
SHOWN = {  # (personalization, clock) -> title of a column of the figure
    ("FedRep", "exponential"): "FedRep, Exp(1)",
    ("FedAvg", "exponential"): "FedAvg, fine-tuned, Exp(1)",
    ("FedRep", "phones"): "FedRep, phones",
    ("FedRep", "phones come and go"): "FedRep, phones that come and go",
}
ANSWERS = ("full", "doubling", "fastest", "TiFL", "Oort", "deadline", "FedBuff")


class Point(NamedTuple):
    """One run."""

    personalization: str
    answer: str
    classes: int
    clock: str
    cost: float  # of a round, as part of the clock; 0 where the cost is added afterwards
    seed: int

    @property
    def name(self) -> str:
        """Return the name of its run."""
        return ", ".join(map(str, self))


def measure(
    history: srp.History, cost: float, target: float, horizon: float
) -> dict[str, Any]:
    """Measure a run; if it reached the target at once, its first evaluation did, and its time is an upper bound."""
    place = history.reached(target)
    return {
        "final": history.final_accuracy,
        "at_horizon": _accuracy_at(history, horizon, cost),
        "slowest_tenth": history.slowest_scores()[-1],
        "worst_tenth": history.worst_decile[-1],
        "target": target,
        "time": math.inf if place is None else history.eval_elapsed(cost)[place],
        "at_once": place == 0,
        "end": history.elapsed(cost)[-1],
        "gini": history.participation.gini,
        "never": history.participation.never,
        "wasted": _wasted_share(history),
    }


def _wasted_share(history: srp.History) -> float:
    """Share of the clients' time that was wasted; nan if no client worked. Units of partial work count as one."""
    wasted = np.sum(history.metrics.get("wasted_time", 0.0))
    useful = (history.rounds_taken * history.client_time).sum()
    return float(wasted / (wasted + useful)) if wasted + useful else math.nan


def _accuracy_at(history: srp.History, time: float, cost: float) -> float:
    """Mean accuracy last evaluated at or before a time; nan before the first evaluation."""
    past = int((history.eval_elapsed(cost) <= time).sum())
    return float(history.mean_accuracy[past - 1]) if past else math.nan


Runs = Mapping[Point, srp.History]
Setting = tuple[str, str, int, str]  # personalization, judge, classes, clock


def histories(runs: Runs) -> Iterator[tuple[Setting, Point, srp.History]]:
    """Yield setting, point and history of each run and evaluation; accuracies are shares of counted test points."""
    for point, history in runs.items():
        counts = history.test_count
        for judge, scores in history.accuracies.items():
            # 0.9 in single precision would miss a target of 0.9
            exact = np.rint(scores * counts) / np.maximum(counts, 1)
            judged = dataclasses.replace(history, accuracies={judge: exact})
            setting = (point.personalization, judge, point.classes, point.clock)
            yield setting, point, judged


SETTING = ("personalization", "judge", "classes", "clock")


def table(runs: Runs) -> pd.DataFrame:
    """Return a row for each run, cost and evaluation. The target is 95 % of the final accuracy of waiting for all
    clients, mean over seeds; the horizon is the time that its rounds take.
    """
    rows = [*histories(runs)]
    full: dict[Setting, list[srp.History]] = {}
    for setting, point, own in rows:
        if point.answer == "full":
            full.setdefault(setting, []).append(own)
    found = []
    for setting, point, own in rows:
        finals = [other.final_accuracy for other in full[setting]]
        target = round(0.95 * float(np.mean(finals)), 3)
        costs = COSTS
        if own.asynchronous:
            costs = (point.cost,)
        elif point.clock.startswith("phones"):
            costs = (0.0,)
        for cost in costs:
            ends = [other.elapsed(cost)[-1] for other in full[setting]]
            horizon = float(np.mean(ends))
            row = {"answer": point.answer, **dict(zip(SETTING, setting, strict=True))}
            row |= {"cost": cost, "seed": point.seed, "horizon": horizon}
            charged = 0.0 if own.asynchronous else cost
            found.append(row | measure(own, charged, target, horizon))
    return pd.DataFrame(found)


def curves(runs: Runs) -> pd.DataFrame:
    """Return the curves of the figure: mean accuracy, and that of the slowest tenth of the clients."""
    found = [pd.DataFrame()]
    for (name, judge, classes, clock), point, own in histories(runs):
        is_shown = (name, clock) in SHOWN and point.answer in ANSWERS and not point.cost
        if is_shown and judge == MAIN_EVALUATION[name] and classes == CLASSES:
            part = {
                "answer": point.answer,
                "personalization": name,
                "clock": clock,
                "seed": point.seed,
                "time": own.eval_elapsed(0),
                "mean": own.mean_accuracy,
                "slowest_tenth": own.slowest_scores(),
            }
            found.append(pd.DataFrame(part))
    return pd.concat(found, ignore_index=True)
