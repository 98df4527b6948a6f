"""Full participation, with partial work of slow clients."""

from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import fastest_available, with_partial_work
from fedjax_srp.parts.part import Count, Share, Static, part


@part
class PartialWork(ParticipationPolicy):
    """Every client takes part in every round, slow ones with fewer units of local work.

    The server waits until a share of the clients has done `max_work` units of work; the others then
    send their work so far: client i has done floor(max_work * T / T_i) units, at least one, with T
    the time of the last client on time. The round lasts until the slowest client has sent its work.
    Speeds need not be known beforehand. Use it for FedNova's unequal numbers of local steps (Wang
    et al., 2020) and FedProx's partial work (Li et al., 2020): these papers draw the work at
    random; FLANP, which compares with FedNova, does not say how. The algorithm defines a unit: a
    step with `Training(steps=1)`, else one or several epochs. The clock's time is that of a unit.

    Args:
        max_work: most units of work of a client.
        on_time: share of the clients that do all of it, rounded up; with 1 all clients do equal
            work.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.PartialWork(max_work=10, on_time=0.5)
        >>> times = jnp.array([2.0, 1.0, 3.0, 50.0])
        >>> state = policy.init(jax.random.key(0), 4)
        >>> cohort, _ = policy.select(jax.random.key(1), state, srp.ClientTimes(times, times))
        >>> cohort.client_ids.tolist(), cohort.work.tolist()
        ([1, 0, 2, 3], [10, 10, 6, 1])
    """

    name: ClassVar[str] = "partial_work"
    max_work: Count = 10  # pyright: ignore[reportIncompatibleMethodOverride]
    on_time: Static[Share] = 0.5

    @override
    def select(
        self, key: Key, state: tuple[()], times: ClientTimes
    ) -> tuple[Cohort, tuple[()]]:
        all_clients = jnp.arange(times.realised.shape[0], dtype=jnp.int32)
        cohort = fastest_available(times, all_clients)
        return with_partial_work(cohort, times, self.max_work, self.on_time), state
