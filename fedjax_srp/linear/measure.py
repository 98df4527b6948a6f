"""Reading runs on linear tasks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedjax_srp.history import History


def time_to_distance(history: History, target: float, communication: float = 0.0) -> float:
    """Simulated time at the end of the first round whose metric `distance` is at most `target`.

    Returns:
        Time units; inf when no round reached the target. Nothing is interpolated, nan never reaches.
    """
    reached = history.metrics["distance"] <= target
    return float(history.elapsed(communication)[np.argmax(reached)]) if reached.any() else math.inf
