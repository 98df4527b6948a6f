"""An asynchronous server, which steps when its buffer is full."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import check_at_most, draw, k_fastest, make_cohort
from fedjax_srp.parts.part import Count, part


class BufferedState(NamedTuple):
    """State of all jobs at the last server step.

    It has the remaining time of each job, not its end: absolute times grow, and float32 cannot
    resolve the difference of two of them.
    """

    # (num_clients,) float, time until the client's job ends; unused if a job begins
    remaining: Array
    # (num_clients,) bool: clients that begin a job now, with the time of this round
    begins: Array
    busy: Array | None = None  # (num_clients,) bool: busy clients; None: all
    drawn: Array | None = (
        None  # (k - 1,) int32: clients that begin at the next deliveries, in order
    )


@part
class Buffered(ParticipationPolicy):
    """Clients work concurrently; a round is one server step, with the `k` jobs that end first.

    A job takes the realised time of the round in which it begins. The round lasts from the last
    server step to the k-th of these ends. `FedBuff` and `FedAsync` train on old models. With any
    other algorithm a participant trains on the model of the round in which it delivers: updates are
    never stale, which is optimistic for an asynchronous server.

    Without `concurrency` all clients work all the time. Clients whose jobs ended wait for the new
    model and begin their next job at the server step; the others continue with their model. Fast
    clients deliver more often. With k = 1 no client waits, as in FedAsync (Xie et al., 2019). With
    k = num_clients it is `Full`.

    With `concurrency=M`, as in FedBuff (Nguyen et al., 2022), M clients work at any time. When one
    delivers, another one, drawn uniformly from the idle clients, begins at once with the server's
    current model, so that slow clients begin about as often as fast ones; a client that has
    delivered can be drawn again after the server step.

    A communication cost changes the order of arrivals, so none can be added afterwards: give it to
    the clock, `clocks.Fixed(..., communication=10)`.

    Args:
        k: size of the buffer, jobs per server step.
        concurrency: M, clients at work at any time, at most num_clients - k + 1; None: all clients.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Buffered(1)
        >>> times = jnp.array([2.0, 5.0])
        >>> state = policy.init(jax.random.key(0), 2)
        >>> for _ in range(4):  # server steps at times 2, 4, 5 and 6
        ...     now = srp.ClientTimes(times, times)
        ...     cohort, state = policy.select(jax.random.key(1), state, now)
        ...     print(cohort.client_ids.tolist(), float(cohort.duration))
        [0] 2.0
        [0] 2.0
        [1] 1.0
        [0] 1.0
    """

    asynchronous: ClassVar[bool] = True
    k: Count = 10
    concurrency: Count | None = None

    @override
    def init(self, key: Key, num_clients: int) -> BufferedState:
        check_at_most("buffered: k", self.k, "num_clients", num_clients)
        if self.concurrency is None:
            everyone = jnp.ones(num_clients, jnp.bool_)
            return BufferedState(remaining=jnp.zeros(num_clients), begins=everyone)
        check_at_most(
            "buffered: concurrency",
            self.concurrency,
            "num_clients - k + 1",
            num_clients - self.k + 1,
        )
        no_client = jnp.zeros(num_clients, jnp.bool_)
        drawn = draw(key, num_clients, self.concurrency + self.k - 1)
        begins = no_client.at[drawn[: self.concurrency]].set(True)
        later = drawn[self.concurrency :]
        return BufferedState(jnp.zeros(num_clients), begins, busy=no_client, drawn=later)

    @override
    def select(
        self, key: Key, state: BufferedState, times: ClientTimes
    ) -> tuple[Cohort, BufferedState]:
        """The k jobs that end first."""
        # r_i <- T_i where a job begins
        remaining = jnp.where(state.begins, times.realised, state.remaining)
        if state.busy is not None:
            busy = state.busy | state.begins
            return self._replacing(key, busy, remaining, jnp.asarray(state.drawn), times)
        # d = the k-th smallest r_i
        client_ids = k_fastest(remaining, self.k)
        duration = remaining[client_ids[-1]]
        # r_i <- r_i - d
        begins = jnp.zeros_like(state.begins).at[client_ids].set(True)
        cohort = make_cohort(client_ids)._replace(duration=duration)
        return cohort, BufferedState(remaining - duration, begins)

    def _replacing(
        self, key: Key, busy: Array, remaining: Array, drawn: Array, times: ClientTimes
    ) -> tuple[Cohort, BufferedState]:
        """Select the k jobs that end first, where another client begins at each end."""

        def end(busy: Array, remaining: Array) -> tuple[Array, Array]:
            client = jnp.argmin(jnp.where(busy, remaining, jnp.inf)).astype(jnp.int32)
            return client, busy.at[client].set(False)

        def replace(
            jobs: tuple[Array, Array], new: Array
        ) -> tuple[tuple[Array, Array], Array]:
            busy, remaining = jobs
            client, busy = end(busy, remaining)
            # r_j <- r_i + T_j where j begins at the end of i's job
            ends = remaining[client] + times.realised[new]
            return (busy.at[new].set(True), remaining.at[new].set(ends)), client

        (busy, remaining), delivered = jax.lax.scan(replace, (busy, remaining), drawn)
        last, busy = end(busy, remaining)
        duration = remaining[last]
        # for the next round: the first begins at the server step, the others as clients deliver
        drawn = draw(key, busy.shape[0], self.k, ~busy)
        begins = jnp.zeros_like(busy).at[drawn[0]].set(True)
        cohort = make_cohort(jnp.append(delivered, last))
        cohort = cohort._replace(duration=duration, next_ids=drawn)
        remaining = jnp.where(busy, remaining - duration, 0)
        return cohort, BufferedState(remaining, begins, busy, drawn=drawn[1:])
