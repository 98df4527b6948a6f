"""Stages of a growing cohort: how many clients take part in each, who they are, and how many rounds it lasts."""

from collections.abc import Sequence
from itertools import accumulate

import jax.numpy as jnp

from fedjax_srp._checks import INT32_MAX
from fedjax_srp.base import Array, Cohort
from fedjax_srp.participation.cohorts import make_cohort, order_by_time


def stage_sizes(initial: int, pool: int) -> list[int]:
    """n of every stage: initial * 2**r while below the pool, then the pool."""
    sizes = [initial]
    while sizes[-1] < pool:
        sizes.append(min(pool, 2 * sizes[-1]))
    return sizes


def stage_cohort(times: Array, pool: Array, sizes: Sequence[int], stage: Array) -> Cohort:
    """The n fastest of a pool, n being the size of the stage: n = min(N, n0 * 2**r); `times` are those of all."""
    return make_cohort(order_by_time(times, pool), jnp.asarray(sizes, jnp.int32)[stage], stage)


def stage_ends(lengths: int | tuple[int, ...], num_stages: int) -> Array:
    """The round after each stage but the last, which does not end: (num_stages - 1,) int32; not listed is 0 rounds."""
    listed = (lengths if isinstance(lengths, tuple) else (lengths,) * num_stages) + (0,) * num_stages
    return jnp.asarray([min(end, INT32_MAX) for end in accumulate(listed[: num_stages - 1])], jnp.int32)
