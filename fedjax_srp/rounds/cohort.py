"""Faults of a cohort, duration of its round, wasted time; all in-graph."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_srp.base import Array, ClientTimes, Cohort
from fedjax_srp.participation.cohorts import work_times


def takes_part(cohort: Cohort) -> Array:
    """(pool,) bool: True for participants, False for padding and for clients that do not report."""
    return jnp.arange(cohort.client_ids.shape[0], dtype=jnp.int32) < cohort.size


def cohort_fault(cohort: Cohort, times: ClientTimes) -> Array:
    """(2,) int32: first fault of a cohort, its place in `contract.FAULTS` from 1, and the client; (0, 0) for none."""
    pool, ids, num_clients = (
        cohort.client_ids.shape[0],
        cohort.client_ids,
        times.realised.shape[0],
    )
    asked = cohort.size if cohort.asked is None else cohort.asked
    works = takes_part(cohort._replace(size=asked))
    no_such_client = works & ((ids < 0) | (ids >= num_clients))
    negative_work = works & (cohort.work < 0)
    count = (
        jnp.zeros(num_clients, jnp.int32)
        .at[jnp.where(works, ids, num_clients)]
        .add(1, mode="drop")
    )
    least = 1 if times.available is None else 0
    first_id = lambda wrong: ids[jnp.argmax(wrong)]
    found = [
        ((cohort.size < least) | (cohort.size > pool), cohort.size),
        (no_such_client.any(), first_id(no_such_client)),
        ((count > 1).any(), jnp.argmax(count > 1).astype(jnp.int32)),
        (negative_work.any(), first_id(negative_work)),
    ]
    if cohort.asked is not None or times.available is not None:
        found.append(((asked < cohort.size) | (asked > pool), asked))
    if times.available is not None and times.stays is not None:
        away = works & ~times.available[ids]
        fails = takes_part(cohort) & (
            work_times(cohort, times) > (1 + 1e-5) * times.stays[ids]
        )
        found += [(away.any(), first_id(away)), (fails.any(), first_id(fails))]
    wrong, clients = (jnp.stack(part) for part in zip(*found, strict=True))
    kind = jnp.argmax(wrong)
    return jnp.where(
        wrong.any(), jnp.stack([kind.astype(jnp.int32) + 1, clients[kind]]), 0
    )


def slowest(cohort: Cohort, times: ClientTimes) -> Array:
    """() float: time of the participant that takes longest."""
    durations = work_times(cohort, times)
    return jnp.max(
        jnp.where(takes_part(cohort), durations, jnp.zeros((), durations.dtype))
    )


def wasted_time(cohort: Cohort, times: ClientTimes, duration: Array) -> Array:
    """() float: total time of the clients that work and do not report."""
    asked = cohort if cohort.asked is None else cohort._replace(size=cohort.asked)
    is_wasted = takes_part(asked) & ~takes_part(cohort)
    worked = jnp.minimum(work_times(cohort, times), duration)
    if times.stays is not None:
        worked = jnp.minimum(worked, times.stays[cohort.client_ids])
    return jnp.sum(jnp.where(is_wasted, worked, jnp.zeros((), worked.dtype)))
