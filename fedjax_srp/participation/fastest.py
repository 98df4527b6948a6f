"""The fastest clients."""

from typing import Literal

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    check_at_most,
    closed_after,
    draw_pool,
    fastest_available,
    k_fastest,
    make_cohort,
    request,
)
from fedjax_srp.parts.part import Count, part


@part
class Fastest(ParticipationPolicy):
    """In every round the `k` fastest of all clients take part, or of a pool drawn anew.

    Without a pool it is the baseline "k fastest nodes" of FLANP, section 5; the other clients never
    take part if speeds are fixed. By realised times the server asks all clients and continues when
    k answers are in (SRPFL, Remark 3.2); by expected times it asks the clients that are expected to
    be fast. A pool, by realised times, is over-selection, as in production systems (Bonawitz et
    al., 2019, who ask 1.3 k).

    Args:
        k: clients per round.
        by: the times that rank the clients.
        pool: number of clients asked, drawn uniformly without replacement in every round; None for
            all.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Fastest(2)
        >>> times = jnp.array([3.0, 1.0, 2.0])
        >>> state = policy.init(jax.random.key(0), 3)
        >>> cohort, _ = policy.select(jax.random.key(1), state, srp.ClientTimes(times, times))
        >>> cohort.client_ids.tolist()
        [1, 2]
    """

    k: Count
    by: Literal["realised", "expected"] = "realised"
    pool: Count | None = None

    @override
    def init(self, key: Key, num_clients: int) -> tuple[()]:
        if self.pool is None:
            check_at_most("fastest: k", self.k, "num_clients", num_clients)
        else:
            check_at_most("fastest: k", self.k, "pool", self.pool)
            check_at_most("fastest: pool", self.pool, "num_clients", num_clients)
        return ()

    @override
    def select(
        self, key: Key, state: tuple[()], times: ClientTimes
    ) -> tuple[Cohort, tuple[()]]:
        num_clients = times.realised.shape[0]
        if self.pool is None and times.available is None:
            return make_cohort(k_fastest(getattr(times, self.by), self.k)), state
        pool = draw_pool(key, num_clients, self.pool or num_clients, times.available)
        if self.pool is not None and self.by == "realised":  # the whole pool works
            return closed_after(
                fastest_available(times, pool), times, quorum=self.k
            ), state
        return request(times, pool, jnp.int32(self.k), by=self.by), state
