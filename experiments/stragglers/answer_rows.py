"""Tables of the runs of `answers.py`: one row for each run, cost and evaluation, and curves over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedjax_srp as srp

PHONE_SLOWDOWN = (
    100  # factor on the times of phones that come and go, so that a round spans sessions
)
COSTS = (0.0, 1.0, 10.0)  # mean times of a client
MAIN_EVALUATION = dict.fromkeys(
    ("FedAvg", "FedRep", "Ditto", "LG", "FedPer"), "fine_tune"
) | {"Ditto": "own_model"}
CLASSES = 5  # of each client in the figure
SHOWN = {  # (personalization, clock) -> title of a column of the figure
    ("FedRep", "exponential"): "FedRep, Exp(1)",
    ("FedAvg", "exponential"): "FedAvg, fine-tuned, Exp(1)",
    ("FedRep", "phones"): "FedRep, phones",
    ("FedRep", "phones come and go"): "FedRep, phones that come and go",
}
ANSWERS = ("full", "doubling", "fastest", "TiFL", "Oort", "deadline", "FedBuff")
ASYNCHRONOUS = ("FedBuff", "FedAsync", "FedAT")


class Point(NamedTuple):
    """One run of a batch."""

    answer: str
    classes: int
    clock: str
    cost: float  # of a round, as part of the clock; 0 where the cost is added afterwards
    seed: int


def history_of(
    arrays: dict[str, np.ndarray], place: int, judge: str, data: Any, overlaps: bool
) -> srp.History:
    """Return one run of a batch as a `History` with one evaluation, whose accuracies are shares of counted points."""
    one = {name: values[place] for name, values in arrays.items()}
    counts = np.asarray(data.test_counts)
    rounds, scores = len(one["time"]), one[f"scores/{judge}"]
    scores = np.rint(scores * counts) / np.maximum(
        counts, 1
    )  # 0.9 in single precision would miss a target of 0.9
    return srp.History(
        name=judge,
        round=np.arange(1, rounds + 1),
        stage=np.zeros(rounds),
        cohort_size=one["size"],
        compute_time=one["time"],
        communicated=np.ones(rounds, bool),
        finite=np.ones(rounds, bool),
        client_time=one["client_time"],
        metrics={"wasted_time": one["wasted"]},
        eval_round=rounds // len(scores) * np.arange(1, len(scores) + 1),
        accuracies={judge: scores},
        test_count=counts,
        rounds_taken=one["rounds_taken"],
        asynchronous=overlaps,
    )


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
    wasted, useful = (
        history.metrics["wasted_time"].sum(),
        (history.rounds_taken * history.client_time).sum(),
    )
    return float(wasted / (wasted + useful)) if wasted + useful else math.nan


def _accuracy_at(history: srp.History, time: float, cost: float) -> float:
    """Mean accuracy last evaluated at or before a time; nan before the first evaluation."""
    past = int((history.eval_elapsed(cost) <= time).sum())
    return float(history.mean_accuracy[past - 1]) if past else math.nan


Runs = Sequence[
    tuple[str, list[Point], dict[str, np.ndarray]]
]  # personalization, batch, arrays by batch


def histories(
    runs: Runs, data: dict[int, Any]
) -> Iterator[tuple[tuple[str, str, int, str], Point, srp.History]]:
    """Yield (personalization, judge, classes, clock), point and history of each run and evaluation."""
    for name, batch, arrays in runs:
        judges = [
            key.removeprefix("scores/") for key in arrays if key.startswith("scores/")
        ]
        for judge, (place, point) in itertools.product(judges, enumerate(batch)):
            history = history_of(
                arrays,
                place,
                judge,
                data[point.classes],
                point.answer.startswith(ASYNCHRONOUS),
            )
            yield (name, judge, point.classes, point.clock), point, history


def table(runs: Runs, data: dict[int, Any]) -> pd.DataFrame:
    """Return a row for each run, cost and evaluation. The target is 95 % of the final accuracy of waiting for all
    clients, mean over seeds; the horizon is the time that its rounds take.
    """
    rows = [*histories(runs, data)]
    full_runs: dict[tuple[str, str, int, str], list[srp.History]] = {}
    for setting, point, own in rows:
        if point.answer == "full":
            full_runs.setdefault(setting, []).append(own)
    found = []
    for setting, point, own in rows:
        full_histories = full_runs[setting]
        target = round(
            0.95 * float(np.mean([other.final_accuracy for other in full_histories])), 3
        )
        for cost in (
            (point.cost,)
            if own.asynchronous
            else COSTS
            if not point.clock.startswith("phones")
            else (0.0,)
        ):
            horizon = float(
                np.mean([other.elapsed(cost)[-1] for other in full_histories])
            )
            columns = dict(
                zip(
                    ("personalization", "judge", "classes", "clock"), setting, strict=True
                )
            )
            numbers = measure(own, 0.0 if own.asynchronous else cost, target, horizon)
            found.append(
                {"answer": point.answer}
                | columns
                | {"cost": cost, "seed": point.seed, "horizon": horizon}
                | numbers
            )
    return pd.DataFrame(found)


def curves(runs: Runs, data: dict[int, Any]) -> pd.DataFrame:
    """Return the curves of the figure: mean accuracy, and that of the slowest tenth of the clients."""
    found = []
    for (name, judge, classes, clock), point, own in histories(runs, data):
        wanted = (
            (name, clock) in SHOWN
            and point.answer in ANSWERS
            and judge == MAIN_EVALUATION[name]
        )
        if wanted and classes == CLASSES and not point.cost:
            named = {
                "answer": point.answer,
                "personalization": name,
                "clock": clock,
                "seed": point.seed,
            }
            measured = {
                "time": own.eval_elapsed(0),
                "mean": own.mean_accuracy,
                "slowest_tenth": own.slowest_scores(),
            }
            found.append(pd.DataFrame(named | measured))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
