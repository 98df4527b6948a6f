"""Stages of a growing cohort: the cohort size and the number of rounds of each."""

from itertools import accumulate

import jax.numpy as jnp

from fedjax_srp._checks import INT32_MAX
from fedjax_srp.base import Array


def stage_sizes(initial: int, pool: int) -> list[int]:
    """n of every stage: initial * 2**r while below the pool, then the pool."""
    sizes = [initial]
    while sizes[-1] < pool:
        sizes.append(min(pool, 2 * sizes[-1]))
    return sizes


def stage_ends(lengths: int | tuple[int, ...], num_stages: int) -> Array:
    """The round after each stage but the last, which does not end: (num_stages - 1,) int32; unlisted ones have 0."""
    listed = (lengths if isinstance(lengths, tuple) else (lengths,) * num_stages) + (0,) * num_stages
    return jnp.asarray([min(end, INT32_MAX) for end in accumulate(listed[: num_stages - 1])], jnp.int32)
