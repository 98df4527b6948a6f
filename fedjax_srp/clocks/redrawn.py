"""Clients whose speeds change once in a while."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, ClockState, Key
from fedjax_srp.clocks.available import Wrapped
from fedjax_srp.parts.part import Count, Leaf, part


class RedrawnState(NamedTuple):
    """State of the other clock, the next round, and the key of the draws."""

    clock: ClockState
    round: Array  # () int32
    key: Key


@part
class Redrawn(Wrapped):
    """Another clock that begins anew, with another draw, after every so many rounds.

    SRPFL, section 3 and appendix B: speeds are drawn anew in every stage. A clock knows no stages, so `every` is the
    rounds of one: `Redrawn(Fixed(Exponential(1.0)), every=10)` beside `Doubling(rounds_per_stage=10)`. The first
    draw is that of the other clock alone.

    Args:
        clock: the other clock.
        every: rounds that a draw lasts.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> clock = srp.clocks.Redrawn(srp.clocks.Fixed(srp.clocks.Exponential(1.0)), every=2)
        >>> state = clock.init(jax.random.key(0), 3)
        >>> fastest = []
        >>> for _ in range(8):
        ...     times, state = clock.sample(jax.random.key(1), state, jnp.zeros(()))
        ...     fastest.append(int(times.realised.argmin()))
        >>> fastest[0::2] == fastest[1::2], len(set(fastest)) > 1
        (True, True)
    """

    every: Leaf[Count]

    @override
    def init(self, key: Key, num_clients: int) -> RedrawnState:
        return RedrawnState(self.clock.init(key, num_clients), jnp.int32(0), key)

    @override
    def sample(
        self, key: Key, state: RedrawnState, now: Array
    ) -> tuple[ClientTimes, RedrawnState]:
        shapes, _ = jax.eval_shape(self.clock.sample, key, state.clock, now)
        num_clients = shapes.realised.shape[0]
        every = jnp.asarray(self.every, jnp.int32)
        number = state.round // every
        is_new = (state.round % every == 0) & (number > 0)

        def drawn() -> ClockState:
            return self.clock.init(jax.random.fold_in(state.key, number), num_clients)

        clock = jax.lax.cond(is_new, drawn, lambda: state.clock)
        times, clock = self.clock.sample(key, clock, now)
        return times, RedrawnState(clock, state.round + 1, state.key)
