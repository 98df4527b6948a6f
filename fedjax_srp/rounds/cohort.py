"""Faults of a cohort, duration of its round, wasted time; all in-graph."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_srp.base import Array, ClientTimes, Cohort
from fedjax_srp.contract.faults import CohortFault


def takes_part(cohort: Cohort) -> Array:
    """(pool,) bool: True for participants, False for padding and for clients that do not report."""
    return jnp.arange(cohort.client_ids.shape[0], dtype=jnp.int32) < cohort.size


def num_asked(cohort: Cohort) -> Array:
    """() int32: number of clients that work, see `Cohort.asked`."""
    return cohort.size if cohort.asked is None else cohort.asked


def cohort_fault(cohort: Cohort, times: ClientTimes) -> Array:
    """(2,) int32: the first fault of a cohort, a `CohortFault`, and the number that describes it."""
    ids = cohort.client_ids
    pool = ids.shape[0]
    num_clients = times.realised.shape[0]
    asked = num_asked(cohort)
    works = takes_part(cohort._replace(size=asked))
    unknown = works & ((ids < 0) | (ids >= num_clients))
    # The least work, not the first below zero: if all clients have one unit, no mask of these is left, and XLA would
    # search a constant while it compiles (a million clients: 9 s).
    work = jnp.where(works, cohort.work, 0)
    least = jnp.argmin(work)
    counts = jnp.zeros(num_clients, jnp.int32)
    counts = counts.at[jnp.where(works, ids, num_clients)].add(1, mode="drop")
    min_size = 1 if times.available is None else 0

    def first_client(is_wrong: Array) -> tuple[Array, Array]:
        return is_wrong.any(), ids[jnp.argmax(is_wrong)]

    twice = counts > 1
    faults = {
        CohortFault.SIZE: ((cohort.size < min_size) | (cohort.size > pool), cohort.size),
        CohortFault.NO_SUCH_CLIENT: first_client(unknown),
        CohortFault.CLIENT_TWICE: (twice.any(), jnp.argmax(twice).astype(jnp.int32)),
        CohortFault.NEGATIVE_WORK: (work[least] < 0, ids[least]),
    }
    if cohort.asked is not None:
        faults[CohortFault.ASKED] = ((asked < cohort.size) | (asked > pool), asked)
    if times.available is not None and cohort.jobs is not None:
        beginners = cohort.jobs.client_ids
        begins = jnp.arange(num_clients, dtype=jnp.int32) < cohort.jobs.size
        away = begins & ~times.available[beginners]
        faults[CohortFault.CLIENT_AWAY] = (away.any(), beginners[jnp.argmax(away)])
    elif times.available is not None and times.stays is not None:
        faults[CohortFault.CLIENT_AWAY] = first_client(works & ~times.available[ids])
        until = (1 + 1e-5) * times.stays[ids]
        leaves = takes_part(cohort) & (times.of_work(cohort) > until)
        faults[CohortFault.CLIENT_LEAVES] = first_client(leaves)
    is_wrong = jnp.stack([wrong for wrong, _ in faults.values()])
    kinds = jnp.array(list(faults), jnp.int32)
    numbers = jnp.stack([number for _, number in faults.values()])
    first = jnp.argmax(is_wrong)
    fault = jnp.stack([kinds[first], numbers[first]])
    return jnp.where(is_wrong.any(), fault, jnp.int32(CohortFault.NONE))


def slowest(cohort: Cohort, times: ClientTimes) -> Array:
    """() float: time of the participant that takes longest."""
    durations = times.of_work(cohort)
    zero = jnp.zeros((), durations.dtype)
    return jnp.max(jnp.where(takes_part(cohort), durations, zero))


def wasted_time(cohort: Cohort, times: ClientTimes, duration: Array) -> Array:
    """() float: total time of the clients that work and do not report."""
    works = takes_part(cohort._replace(size=num_asked(cohort)))
    is_wasted = works & ~takes_part(cohort)
    worked = jnp.minimum(times.of_work(cohort), duration)
    if times.stays is not None:
        worked = jnp.minimum(worked, times.stays[cohort.client_ids])
    return jnp.sum(jnp.where(is_wasted, worked, jnp.zeros((), worked.dtype)))
