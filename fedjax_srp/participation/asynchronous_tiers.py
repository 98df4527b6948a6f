"""Tiers of clients that do not wait for each other."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    check_at_most,
    draw,
    make_cohort,
    order_by_time,
    speed_tiers,
)
from fedjax_srp.parts.part import Count, part


class AsynchronousTiersState(NamedTuple):
    """The current round of each tier, at the last server step."""

    cohorts: Array  # (tiers, k) int32
    remaining: Array  # (tiers,) float, time until the tier's round ends; unused if a round begins
    begins: (
        Array  # (tiers,) bool: tiers that begin a round now, with the times of this round
    )


@part
class AsynchronousTiers(ParticipationPolicy):
    """Each tier of clients with similar speed has its own synchronous rounds.

    A round of the run is one of them. FedAT (Chai et al., 2021): clients are sorted by their
    expected times into `tiers` of equal size (the last one takes the remainder). In each tier `k`
    clients, drawn uniformly, train concurrently; when all are done, the server steps and the tier
    begins its next round with newly drawn clients. Tiers never wait for each other. `Cohort.stage`
    is the tier, 0 the fastest, for the algorithm `FedAT`; with any other algorithm a tier trains on
    the server's newest model, which is optimistic for an asynchronous server. With one tier it is
    `Uniform(k)`.

    A communication cost changes the order of the tiers' rounds, so none can be added afterwards:
    give it to the clock, `clocks.Fixed(..., communication=10)`.

    Args:
        k: clients in a round of a tier.
        tiers: number of tiers.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.AsynchronousTiers(1, tiers=2)
        >>> times = jnp.array([2.0, 5.0])
        >>> state = policy.init(jax.random.key(0), 2)
        >>> for _ in range(4):  # server steps at times 2, 4, 5 and 6
        ...     now = srp.ClientTimes(times, times)
        ...     cohort, state = policy.select(jax.random.key(1), state, now)
        ...     print(int(cohort.stage), float(cohort.duration))
        0 2.0
        0 2.0
        1 1.0
        0 1.0
    """

    name: ClassVar[str] = "asynchronous_tiers"
    asynchronous: ClassVar[bool] = True
    k: Count = 10
    tiers: Count = 5

    @override
    def init(self, key: Key, num_clients: int) -> AsynchronousTiersState:
        check_at_most("asynchronous_tiers: tiers", self.tiers, "num_clients", num_clients)
        check_at_most(
            "asynchronous_tiers: k",
            self.k,
            "num_clients // tiers",
            num_clients // self.tiers,
        )
        return AsynchronousTiersState(
            cohorts=jnp.zeros((self.tiers, self.k), jnp.int32),
            remaining=jnp.zeros(self.tiers),
            begins=jnp.ones(self.tiers, jnp.bool_),
        )

    @override
    def select(
        self, key: Key, state: AsynchronousTiersState, times: ClientTimes
    ) -> tuple[Cohort, AsynchronousTiersState]:
        """The cohort of the tier whose round ends first."""
        tier_of = speed_tiers(times.expected, self.tiers)

        def new_cohort(tier: Array) -> Array:
            return draw(key, tier_of.shape[0], self.k, tier_of == tier)

        tiers = jnp.arange(self.tiers, dtype=jnp.int32)
        cohorts = jnp.where(
            state.begins[:, None], jax.vmap(new_cohort)(tiers), state.cohorts
        )
        # r_m <- max of T_i where a round of tier m begins
        remaining = jnp.where(
            state.begins, times.realised[cohorts].max(axis=1), state.remaining
        )
        tier = jnp.argmin(remaining).astype(jnp.int32)
        duration = remaining[tier]
        cohort = make_cohort(order_by_time(times.realised, cohorts[tier]), stage=tier)
        # r_m <- r_m - d
        state = AsynchronousTiersState(
            cohorts, remaining - duration, begins=tiers == tier
        )
        return cohort._replace(duration=duration), state
