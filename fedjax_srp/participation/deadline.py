"""Who is done in time."""

from typing import Annotated

import jax.numpy as jnp

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import check_at_most, draw_pool, make_cohort, order_by_time
from fedjax_srp.parts import Above, Count, part


@part
class Deadline(ParticipationPolicy):
    """The server asks some clients and goes on at the deadline, with those who are done; the others' work is lost.

    A round lasts until all who were asked are done, at most `limit`; where nobody is done by then, until the first one
    is. The reporting window of production systems (Bonawitz et al., 2019, section 2.2).

    Cohorts are ordered by realised time, ties by client id. The metric `wasted_time` is the time that clients worked in
    this round for nothing, in time units, all of them together.

    Args:
        limit: the deadline, in time units.
        pool: clients asked, drawn uniformly without replacement in every round; None for all.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fedjax_srp import participation
        >>> from fedjax_srp.base import ClientTimes
        >>> policy = participation.Deadline(limit=2.5)
        >>> times = jnp.array([3.0, 1.0, 2.0])
        >>> state = policy.init(jax.random.key(0), 3)
        >>> cohort, wasted = policy.select(jax.random.key(1), state, ClientTimes(times, times))
        >>> cohort.client_ids[: cohort.size].tolist(), float(cohort.duration), float(wasted)
        ([1, 2], 2.5, 2.5)
    """

    limit: Annotated[float, Above(0)]
    pool: Count | None = None

    def init(self, key: Key, num_clients: int) -> Array:
        """() float, the wasted time of the round."""
        check_at_most("deadline: pool", self.pool or 1, "num_clients", num_clients)
        return jnp.zeros(())

    def select(self, key: Key, state: Array, times: ClientTimes) -> tuple[Cohort, Array]:
        """Those who are done, the fastest in any case."""
        num_clients = times.realised.shape[0]
        ids = order_by_time(times.realised, draw_pool(key, num_clients, self.pool or num_clients))
        each = times.realised[ids]
        size = jnp.maximum(jnp.sum(each <= self.limit, dtype=jnp.int32), 1)
        duration = jnp.minimum(each[-1], jnp.maximum(self.limit, each[0]))
        late = (each.shape[0] - size).astype(each.dtype)
        return make_cohort(ids, size)._replace(duration=duration), late * duration

    def metrics(self, state: Array) -> dict[str, Array]:
        """What was wasted."""
        return {"wasted_time": state}
