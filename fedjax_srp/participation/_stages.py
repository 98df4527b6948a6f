"""Stages of a growing cohort: how many clients take part in each, who they are, and how many rounds it lasts."""

from collections.abc import Sequence
from itertools import accumulate

import jax.numpy as jnp
import numpy as np

from fedjax_srp._checks import INT32_MAX, check_integer, check_integers
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


def check_stage_lengths(argument: str, rounds_per_stage: int | Sequence[int]) -> int | list[int]:
    """The rounds of every stage alike (>= 1) or of each (>= 0) as Python integers, or a ValueError of one line."""
    if np.iterable(rounds_per_stage) and not isinstance(rounds_per_stage, str):
        return list(check_integers(argument, rounds_per_stage, 0))
    return check_integer(argument, rounds_per_stage, 1)


def stage_ends(lengths: int | list[int], num_stages: int) -> Array:
    """The round after each stage but the last, which does not end: (num_stages - 1,) int32; not listed is 0 rounds."""
    listed = [lengths] * num_stages if isinstance(lengths, int) else lengths + [0] * num_stages
    return jnp.asarray([min(end, INT32_MAX) for end in accumulate(listed[: num_stages - 1])], jnp.int32)
