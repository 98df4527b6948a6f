"""Stages of a run: their cohort, times and criterion."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Stage(NamedTuple):
    """Stage of a participation policy in a run.

    Times are simulated times, in time units.
    """

    stage: int  # from 0
    cohort_size: int  # in the last round of the stage
    first_round: int  # from 1
    num_rounds: int
    begins: float
    ends: float  # end of its last round
    # True if the criterion that ends the stage held in some round; None: no criterion
    completed: bool | None
    # first round after which the criterion held; the last stage continues after it
    completed_round: int | None


def stages_of(
    stage: np.ndarray,
    cohort_size: np.ndarray,
    times: np.ndarray,
    held: np.ndarray | None,
) -> list[Stage]:
    """Return the stages of a run in order.

    Args:
        stage: (R,) stage of each round.
        cohort_size: (R,) number of clients that took part.
        times: (R + 1,) simulated time before the first round and at the end of each.
        held: (R,) True where the criterion held after the round; None without a
            criterion.
    """
    stages = []
    for rounds in np.split(np.arange(len(stage)), np.flatnonzero(np.diff(stage)) + 1):
        if not len(rounds):  # a run of no rounds
            continue
        first = rounds[0]
        last = rounds[-1]
        completed = None
        completed_round = None
        if held is not None:
            completed = bool(held[rounds].any())
            if completed:
                completed_round = int(first + np.argmax(held[rounds])) + 1
        stages.append(
            Stage(
                stage=int(stage[first]),
                cohort_size=int(cohort_size[last]),
                first_round=int(first) + 1,
                num_rounds=len(rounds),
                begins=float(times[first]),
                ends=float(times[last + 1]),
                completed=completed,
                completed_round=completed_round,
            )
        )
    return stages
