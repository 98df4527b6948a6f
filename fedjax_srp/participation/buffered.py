"""An asynchronous server: all clients work all the time, and the server steps when its buffer is full."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import check_at_most, k_fastest, make_cohort
from fedjax_srp.parts import Count, part


class BufferedState(NamedTuple):
    """State of all jobs at the last server step.

    The state has the remaining time of each job, not its end: absolute times grow, and float32 cannot resolve the
    difference of two of them.
    """

    remaining: Array  # (num_clients,) float, time units until the client's job ends; unused where one begins
    begins: Array  # (num_clients,) bool: clients that begin a job now, of this round's time


@part
class Buffered(ParticipationPolicy):
    """All clients work all the time, each on its own job; a round is one server step, with the `k` jobs that end first.

    Clients whose jobs ended wait for the new model and begin their next job at the server step; the others go on with
    their model. A job takes the realised time of the round in which it begins. The round lasts from the last server
    step to the k-th of these ends. Training on old models is the algorithm's part: `FedBuff`. With any other algorithm
    a participant trains on the model of the round in which it delivers: updates are never stale, which flatters an
    asynchronous server.

    FedBuff (Nguyen et al., 2022) differs twice. It keeps a limited number of clients busy and draws the next one at
    random when one has delivered, so that slow clients take part as often; here all clients are busy, and fast ones
    deliver more often. And it sends the OLD model while the buffer fills, so that clients start at once; here a client
    that has delivered waits for the new one. With k = 1 no client waits, as in FedAsync (Xie et al., 2019). With k =
    num_clients it is `Full`. Cohorts are ordered by the end of the job, ties by client id.

    A communication cost changes the order of arrivals, so none can be added afterwards: give it to the clock,
    `clocks.Fixed(..., communication=10)`.

    Args:
        k: size of the buffer, jobs per server step.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fedjax_srp import participation
        >>> from fedjax_srp.base import ClientTimes
        >>> policy = participation.Buffered(1)
        >>> times = jnp.array([2.0, 5.0])
        >>> state = policy.init(jax.random.key(0), 2)
        >>> for _ in range(4):  # server steps at times 2, 4, 5 and 6
        ...     cohort, state = policy.select(jax.random.key(1), state, ClientTimes(times, times))
        ...     print(cohort.client_ids.tolist(), float(cohort.duration))
        [0] 2.0
        [0] 2.0
        [1] 1.0
        [0] 1.0
    """

    asynchronous: ClassVar[bool] = True
    k: Count = 10

    def init(self, key: Key, num_clients: int) -> BufferedState:
        """All clients begin."""
        check_at_most("buffered: k", self.k, "num_clients", num_clients)
        return BufferedState(remaining=jnp.zeros(num_clients), begins=jnp.ones(num_clients, jnp.bool_))

    def select(self, key: Key, state: BufferedState, times: ClientTimes) -> tuple[Cohort, BufferedState]:
        """The k jobs that end first."""
        # r_i <- T_i where a job begins
        remaining = jnp.where(state.begins, times.realised, state.remaining)
        # d = the k-th smallest r_i
        client_ids = k_fastest(remaining, self.k)
        duration = remaining[client_ids[-1]]
        # r_i <- r_i - d
        begins = jnp.zeros_like(state.begins).at[client_ids].set(True)
        return make_cohort(client_ids)._replace(duration=duration), BufferedState(remaining - duration, begins)
