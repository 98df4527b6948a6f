"""What only a run shows of a clock and of a policy: times that are none, cohorts that are none."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_srp.base import Clock, ParticipationPolicy

FAULTS = (  # of a cohort, see `round.cohort_fault`: what is wrong with a number, and the remedy
    "its size is {}, it must be at least 1 and at most the length of client_ids",
    "client {} does not exist: ids lie in 0..num_clients - 1",
    "client {} stands in it more than once: draw clients without replacement (jax.random.choice(..., replace=False))",
    "client {} has negative work: units of local work are 0 or more",
)


def check_cohorts(policy: ParticipationPolicy, faults: Any, first: int) -> None:
    """Refuses a cohort that is none, looked at on the host.

    Args:
        policy: that picked them.
        faults: of its rounds, (..., R, 2), see `round.cohort_fault`.
        first: the number of the first of these rounds.

    Raises:
        ValueError: the first cohort that is wrong, and what is wrong with it.
    """
    faults = np.asarray(faults)
    wrong = np.argwhere(faults[..., 0] > 0)
    if len(wrong):
        place = tuple(min(wrong.tolist(), key=lambda place: place[-1]))
        kind, number = faults[place].tolist()
        raise ValueError(
            f"policy {policy.name!r}: the cohort of round {place[-1] + first}: {FAULTS[kind - 1].format(number)}"
        )


def check_times(clock: Clock, what: str, times: Any, first: int = 0) -> None:
    """Refuses times that were made at run time, looked at on the host.

    Args:
        clock: that made them.
        what: they belong to: "client", "round".
        times: along the last axis.
        first: the number of the first of them.

    Raises:
        ValueError: the first that is negative or not finite.
    """
    times = np.asarray(times)
    bad = np.argwhere(~(np.isfinite(times) & (times >= 0)))
    if len(bad):
        place = tuple(bad[0])
        raise ValueError(
            f"clock {clock.name!r}: the time of {what} {place[-1] + first} is {times[place]}; times must be finite and "
            f">= 0 as {times.dtype}: mend what its sample returns, or Cohort.duration where the policy sets it"
        )
