"""Faults of a cohort: a number in a compiled round, a sentence on the host."""

from __future__ import annotations

import enum


class CohortFault(enum.IntEnum):
    """The first fault of a cohort, as `rounds.cohort.cohort_fault` finds it."""

    NONE = 0
    SIZE = 1
    NO_SUCH_CLIENT = 2
    CLIENT_TWICE = 3
    NEGATIVE_WORK = 4
    ASKED = 5
    CLIENT_AWAY = 6
    CLIENT_LEAVES = 7

    def describe(self, number: int) -> str:
        """The fault in words; `number` is the size, the number of clients asked, or the client."""
        return _WORDS[self].format(number)


_WORDS = {
    CohortFault.SIZE: "its size is {}, it must be at least 1 and at most the length of client_ids",
    CohortFault.NO_SUCH_CLIENT: "client {} does not exist: ids lie in 0..num_clients - 1",
    CohortFault.CLIENT_TWICE: "client {} is in it more than once: draw clients without replacement "
    "(jax.random.choice(..., replace=False))",
    CohortFault.NEGATIVE_WORK: "client {} has negative work: units of local work are 0 or more",
    CohortFault.ASKED: "it asked {} clients, which must be at least its size and at most the length "
    "of client_ids",
    CohortFault.CLIENT_AWAY: "client {} is not available: pick among those of times.available, see "
    "participation.cohorts.request",
    CohortFault.CLIENT_LEAVES: "client {} leaves before its work is done: it cannot report, see "
    "participation.cohorts.request",
}
