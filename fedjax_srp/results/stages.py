"""Stages of a run: their cohort, times and criterion."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Stage(NamedTuple):
    """Stage of a participation policy in a run; times are simulated times, in time units."""

    stage: int  # from 0
    cohort_size: int  # in the last round of the stage
    first_round: int  # from 1
    num_rounds: int
    begins: float
    ends: float  # end of its last round
    completed: (
        bool | None
    )  # True if the criterion that ends the stage held in some round; None: no criterion
    completed_round: (
        int | None
    )  # first round after which the criterion held; the last stage continues after it


def stages_of(
    stage: np.ndarray,
    cohort_size: np.ndarray,
    elapsed: np.ndarray,
    held: np.ndarray | None,
) -> list[Stage]:
    """Return the stages of a run in order.

    Args:
        stage: (R,) stage of each round.
        cohort_size: (R,) number of clients that took part.
        elapsed: (R,) simulated time at the end of each round.
        held: (R,) True where the criterion held after the round; None without a criterion.
    """
    times = np.concatenate([[0.0], elapsed])
    ends = [*(np.flatnonzero(np.diff(stage)) + 1), len(stage)] if len(stage) else []
    stages = []
    for first, end in zip([0, *ends], ends, strict=False):
        completed = (
            [] if held is None else (first + np.flatnonzero(held[first:end])).tolist()
        )
        stages.append(
            Stage(
                stage=int(stage[first]),
                cohort_size=int(cohort_size[end - 1]),
                first_round=int(first) + 1,
                num_rounds=int(end - first),
                begins=float(times[first]),
                ends=float(times[end]),
                completed=None if held is None else bool(completed),
                completed_round=completed[0] + 1 if completed else None,
            )
        )
    return stages
