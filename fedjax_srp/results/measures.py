"""Measures of a run, from arrays: means over clients, and the distribution of rounds over clients."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

# clients over which scores are averaged; quarters are by expected speed
Of = Literal[
    "mean",
    "worst_tenth",
    "slowest_tenth",
    "fastest_quarter",
    "second_quarter",
    "third_quarter",
    "slowest_quarter",
]
GROUPS: tuple[Of, ...] = get_args(Of)
QUARTERS = GROUPS[3:]


class Reached(float):
    """A time, or a number of bytes, until a target was reached: a float that knows whether it is an upper bound.

    Arithmetic gives plain floats. Texts of a bound begin with "≤ ".

    Attributes:
        is_bound: the first evaluation had reached the target, maybe an earlier round had, too.
    """

    is_bound: bool

    def __new__(cls, value: float, is_bound: bool = False) -> Reached:
        """Return a value with its mark."""
        reached = super().__new__(cls, value)
        reached.is_bound = is_bound
        return reached

    def __format__(self, spec: str) -> str:
        """Format as a float, with the mark in front."""
        return "≤ " * self.is_bound + format(float(self), spec)

    def __repr__(self) -> str:
        return format(self)

    __str__ = __repr__


class StartCost(NamedTuple):
    """Costs of the charged passes over all clients before the first round, see `FederatedAlgorithm.start_phases`."""

    time: float = 0.0  # simulated, without an added communication cost
    passes: int = 0  # a communication cost is added for each
    bytes_up: int = 0  # sent by one client in all passes
    bytes_down: int = 0  # received by one client


FREE_START = StartCost()


def remedy_of_bound(first_round: int) -> str:
    """Return how to get a time instead of a bound, after the round of the first evaluation."""
    if first_round == 1:
        return "no round is earlier; give a higher target"
    return "evaluate earlier rounds, e.g. with eval_first=20"


class Participation(NamedTuple):
    """Measures of how evenly rounds are spread over clients."""

    # 0: all clients took part equally often; close to 1: one client did all rounds; nan: none
    # did any
    gini: float
    # share of the clients that never took part; both are nan if rounds were not counted
    never: float


def participation(rounds: np.ndarray) -> Participation:
    """Return Gini's coefficient, `sum_ij |r_i - r_j| / (2 M sum_i r_i)`, and the share of zeros, of (M,) counts."""
    total = int(rounds.sum())
    if not total:
        return Participation(math.nan, 1.0)
    num_clients = len(rounds)
    # sum_ij |r_i - r_j| = 2 sum_k (2 k - M - 1) r_(k), with r_(1) <= ... <= r_(M)
    ranks = 2 * np.arange(1, num_clients + 1) - num_clients - 1
    gini = ranks @ np.sort(rounds) / (num_clients * total)
    return Participation(float(gini), float((rounds == 0).mean()))


def weighted_mean(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(E,) means of (E, M) scores weighted by (M,) counts.

    Scores of clients without test points are ignored.
    """
    is_tested = counts > 0
    if not is_tested.any():
        return np.full(len(scores), np.nan)
    sums = scores[:, is_tested] * counts[is_tested]
    # k / n * n is not always k, and a sum just below its number misses a target of that mean
    correct = np.rint(sums)
    sums = np.where(np.isclose(sums, correct, rtol=1e-15, atol=0), correct, sums)
    return sums.sum(axis=1) / counts[is_tested].sum()


def tenth(number: int) -> int:
    """Return a tenth of a number of clients, rounded down, at least one."""
    return max(1, number // 10)


def worst_tenth(
    scores: np.ndarray, counts: np.ndarray, smaller_is_better: bool
) -> np.ndarray:
    """(E,) plain mean over the worst tenth of the clients with test points, rounded down, at least one."""
    scores = scores[:, counts > 0]
    if not scores.shape[1]:
        return np.full(len(scores), np.nan)
    sign = -1.0 if smaller_is_better else 1.0
    ranked = sign * np.sort(sign * scores, axis=1)  # worst first, nan last
    worst = ranked[:, : tenth(ranked.shape[1])].mean(axis=1)
    return np.where(np.isnan(ranked[:, -1]), np.nan, worst)


def by_speed(times: np.ndarray) -> dict[str, np.ndarray]:
    """Return ids of the floor(M/10) slowest clients, at least one, and of each quarter, by expected `times`, (M,)."""
    order = np.argsort(times, kind="stable")
    quarters = np.array_split(order, len(QUARTERS))
    return {"slowest_tenth": order[-tenth(len(times)) :]} | dict(
        zip(QUARTERS, quarters, strict=True)
    )


def first(holds: np.ndarray) -> int | None:
    """Return the index of the first True; None if there is none."""
    return int(np.argmax(holds)) if holds.any() else None


def last(values: np.ndarray) -> float:
    """Return the last entry; nan if there is none."""
    return float(values[-1]) if len(values) else math.nan
