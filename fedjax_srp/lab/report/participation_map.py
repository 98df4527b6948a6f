"""Map of participants over the rounds, derived from the files of a run.

A run records the cohort size and the duration of a round, not the participants. If n clients took
part, the round lasted exactly as long as the n-th fastest client needs, and the next one needs
longer, they were the n fastest. If the times do not prove this (times drawn in every round, or
clients chosen at random), there is no map.
"""

from __future__ import annotations

import numpy as np

from fedjax_srp.results.history import History

MAX_BANDS = 100  # of clients
MAX_COLUMNS = 500  # of rounds


def took_the_fastest(history: History) -> bool:
    """True if the times prove that the fastest clients took part in every round, or all clients."""
    if not history.num_rounds or history.asynchronous:
        return False
    times = np.sort(history.client_time)
    sizes = history.cohort_size
    slower = np.append(times, np.inf)[sizes]
    proven = (history.compute_time == times[sizes - 1]) & (slower > times[sizes - 1])
    return bool((proven | (sizes == history.num_clients)).all())


def shares(history: History) -> np.ndarray | None:
    """Return the participating share of each band of clients, fastest first, by round.

    It is (bands, columns) float32. Up to `MAX_BANDS` clients and `MAX_COLUMNS` rounds have their
    own row and column, and shares are 0 or 1; more are grouped by `np.array_split`. None if the
    participants are unknown.
    """
    if not took_the_fastest(history):
        return None
    band_edges = _edges(history.num_clients, MAX_BANDS)
    band_sizes = np.diff(band_edges)
    # (bands, rounds)
    taking_part = np.clip(
        history.cohort_size - band_edges[:-1, None], 0, band_sizes[:, None]
    )
    column_edges = _edges(history.num_rounds, MAX_COLUMNS)
    summed = np.add.reduceat(taking_part, column_edges[:-1], axis=1)
    return (summed / np.outer(band_sizes, np.diff(column_edges))).astype(np.float32)


def _edges(count: int, most: int) -> np.ndarray:
    """Return the boundaries of `np.array_split` of `count` items into at most `most` parts."""
    return np.cumsum([0, *map(len, np.array_split(np.arange(count), min(count, most)))])
