"""The k largest of many scores, as a mask: by counts of the scores above thresholds, which need no sorting."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array


class _Bracket(NamedTuple):
    """The wanted threshold lies above `low`, at or below `high`."""

    low: Array
    high: Array
    above_low: Array  # scores of at least low: more than wanted
    above_high: Array  # scores of at least high: as many as wanted, or fewer
    passes: Array


def largest(scores: Array, kept: int | Array) -> Array:
    """(n,) bool: True for the `kept` largest scores; of equal ones the first count.

    Args:
        scores: (n,) int, at least 0 and less than the largest number of their type.
        kept: 1 to n.
    """
    size = scores.size
    threshold, num_above = _threshold(scores, jnp.int32(kept))
    # of scores that equal the last one, those that come first
    is_tied = scores == threshold - 1
    place = size - jax.lax.iota(jnp.int32, size)
    order = jnp.where(is_tied, place, 0)
    last, _ = _threshold(order, kept - num_above)
    return (scores >= threshold) | (order >= last)


def magnitudes(values: Array) -> Array:
    """(n,) int: scores in the order of the magnitudes of floats; nan comes above infinity."""
    if values.dtype.itemsize < 4:
        values = values.astype(jnp.float32)
    kind = jnp.int64 if values.dtype.itemsize == 8 else jnp.int32
    bits = jax.lax.bitcast_convert_type(jnp.abs(values), kind)
    return jnp.minimum(bits, jnp.iinfo(kind).max - 1)


def _threshold(scores: Array, wanted: Array) -> tuple[Array, Array]:
    """The smallest threshold that at most `wanted` scores reach, or another that exactly as many do; their number."""

    def is_open(bracket: _Bracket) -> Array:
        is_exact = bracket.above_high == wanted
        is_narrow = bracket.high - bracket.low <= 1
        return ~is_exact & ~is_narrow

    def narrowed(bracket: _Bracket) -> _Bracket:
        # the middle, and in turn the place where even scores would have the threshold
        too_many = bracket.above_low - wanted
        share = too_many / (bracket.above_low - bracket.above_high)
        is_even_pass = bracket.passes % 2 == 0
        share = jnp.where(is_even_pass, share, 0.5).astype(jnp.float32)
        width = (bracket.high - bracket.low).astype(jnp.float32)
        guess = bracket.low + (width * share).astype(scores.dtype)
        guess = jnp.clip(guess, bracket.low + 1, bracket.high - 1)
        above = jnp.sum(scores >= guess, dtype=jnp.int32)
        is_high = above <= wanted
        return _Bracket(
            low=jnp.where(is_high, bracket.low, guess),
            high=jnp.where(is_high, guess, bracket.high),
            above_low=jnp.where(is_high, bracket.above_low, above),
            above_high=jnp.where(is_high, above, bracket.above_high),
            passes=bracket.passes + 1,
        )

    widest = _Bracket(
        low=jnp.zeros((), scores.dtype),
        high=jnp.max(scores) + 1,
        above_low=jnp.int32(scores.size),
        above_high=jnp.int32(0),
        passes=jnp.int32(0),
    )
    found = jax.lax.while_loop(is_open, narrowed, widest)
    return found.high, found.above_high
