"""Tiers of clients that do not wait for each other."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Cohort, JobsBy, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    available_among,
    check_at_most,
    draw,
    jobs_of,
    make_cohort,
    order_by_time,
    request,
    restricted_to,
    speed_tiers,
)
from fedjax_srp.parts.part import Count, part


class AsynchronousTiersState(NamedTuple):
    """The current round of each tier, at the last server step."""

    cohorts: Array  # (tiers, k) int32
    # (tiers,) float, time until the tier's round ends; unused if a round begins
    remaining: Array
    # (tiers,) bool: tiers that begin a round now, with the times of this round; under a clock with
    # availability as soon as one of their clients is available
    begins: Array
    # (tiers,) int32: clients of the tier's round that report, the first ones
    sizes: Array
    wasted: Array  # (tiers,) float: time that the others work before they leave


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

    Where clients come, go and fail, a tier draws among its available clients, and its round ends
    when each of them is done or has left; without a report it is an empty round of the run. A tier
    without an available client waits for a server step at which it has one, and `FedAT` then trains
    on the model of the end of its last round. The metric `wasted_time` has the time of the tier's
    clients that left, at the end of its round.

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
    jobs_by: ClassVar[tuple[JobsBy, ...]] = ("client", "stage")
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
            sizes=jnp.full(self.tiers, self.k, jnp.int32),
            wasted=jnp.zeros(self.tiers),
        )

    @override
    def select(
        self, key: Key, state: AsynchronousTiersState, times: ClientTimes
    ) -> tuple[Cohort, AsynchronousTiersState]:
        """The cohort of the tier whose round ends first."""
        if times.available is not None:
            return self._among_present(key, state, times)
        tier_of = speed_tiers(times.expected, self.tiers)

        def new_cohort(tier: Array) -> Array:
            return draw(key, tier_of.shape[0], self.k, tier_of == tier)

        tiers = jnp.arange(self.tiers, dtype=jnp.int32)
        starts = jnp.broadcast_to(state.begins[:, None], state.cohorts.shape)
        cohorts = jnp.where(starts, jax.vmap(new_cohort)(tiers), state.cohorts)
        begun = jnp.zeros(tier_of.shape[0], jnp.bool_).at[cohorts].set(starts)
        # r_m <- max of T_i where a round of tier m begins
        remaining = jnp.where(
            state.begins, times.realised[cohorts].max(axis=1), state.remaining
        )
        tier = jnp.argmin(remaining).astype(jnp.int32)
        duration = remaining[tier]
        cohort = make_cohort(order_by_time(times.realised, cohorts[tier]), stage=tier)
        # r_m <- r_m - d
        state = state._replace(
            cohorts=cohorts, remaining=remaining - duration, begins=tiers == tier
        )
        return cohort._replace(duration=duration, jobs=jobs_of(begun)), state

    def _among_present(
        self, key: Key, state: AsynchronousTiersState, times: ClientTimes
    ) -> tuple[Cohort, AsynchronousTiersState]:
        """Select the cohort of the tier whose round ends first, where clients come, go and fail."""
        tier_of = speed_tiers(times.expected, self.tiers)
        num_clients = tier_of.shape[0]
        position = jnp.arange(self.k, dtype=jnp.int32)

        def new_round(tier: Array) -> tuple[Cohort, Array, Array]:
            """A round of the tier, flags of its clients, and the time that they work in vain."""
            wanted = available_among(times, tier_of == tier)
            client_ids = draw(key, num_clients, self.k, wanted)
            cohort = request(restricted_to(times, wanted), client_ids)
            asked = position < jnp.asarray(cohort.asked)
            left = jnp.asarray(times.stays)[cohort.client_ids]
            fails = asked & (position >= cohort.size)
            until = jnp.asarray(cohort.duration)
            wasted = jnp.sum(jnp.where(fails, jnp.minimum(left, until), 0))
            works = jnp.zeros(num_clients, jnp.bool_).at[cohort.client_ids].set(asked)
            return cohort, works, wasted

        tiers = jnp.arange(self.tiers, dtype=jnp.int32)
        new, works, wasted = jax.vmap(new_round)(tiers)
        starts = state.begins & works.any(axis=1)
        waits = state.begins & ~starts
        # a round went on while the server waited for the first client
        remaining = jnp.maximum(state.remaining - jnp.asarray(times.wait), 0)
        remaining = jnp.where(starts, jnp.asarray(new.duration), remaining)
        remaining = jnp.where(waits, jnp.inf, remaining)
        sizes = jnp.where(starts, new.size, jnp.where(waits, 0, state.sizes))
        wasted = jnp.where(starts, wasted, jnp.where(waits, 0, state.wasted))
        cohorts = jnp.where(starts[:, None], new.client_ids, state.cohorts)

        tier = jnp.argmin(remaining).astype(jnp.int32)
        # without any client time passes as in a round without reports
        duration = jnp.where(waits.all(), 0, remaining[tier])
        begun = (works & starts[:, None]).any(axis=0)
        cohort = make_cohort(cohorts[tier], sizes[tier], stage=tier)
        jobs = jobs_of(begun, wasted[tier])
        state = AsynchronousTiersState(
            cohorts=cohorts,
            remaining=remaining - duration,
            begins=(tiers == tier) | waits,
            sizes=sizes,
            wasted=wasted,
        )
        return cohort._replace(duration=duration, jobs=jobs), state
