"""An asynchronous server, which steps when its buffer is full."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    available_among,
    check_at_most,
    draw,
    jobs_of,
    k_fastest,
    make_cohort,
    random_floats,
)
from fedjax_srp.parts.part import Count, part


class BufferedState(NamedTuple):
    """State of all jobs at the last server step.

    It has the remaining time of each job, not its end: absolute times grow, and float32 cannot
    resolve the difference of two of them.
    """

    # (num_clients,) float, time until the client's job ends; unused if a job begins
    remaining: Array
    # (num_clients,) bool: clients that begin a job now, with the time of this round; under a clock
    # with availability those that wait for one, as soon as they are available
    begins: Array
    # (num_clients,) bool: the client leaves at the end of `remaining`, before its job is done;
    # unused without a job
    fails: Array
    # (num_clients,) bool: clients with a job; None: all, except those of `begins`
    busy: Array | None = None
    # (k - 1,) int32: clients that begin at the next deliveries, in order; unused under a clock with
    # availability
    drawn: Array | None = None


class _Events(NamedTuple):
    """The jobs within a round with availability, after some of its events; times since it began."""

    now: Array  # () float, time of the last event
    busy: Array  # (num_clients,) bool: clients with a job
    waiting: Array  # (num_clients,) bool: clients that can be drawn
    begun: Array  # (num_clients,) bool: clients that began a job in this round
    since: Array  # (num_clients,) float, beginning of the client's job; 0 if before the round
    ends: Array  # (num_clients,) float, when its job is done, or the client leaves
    fails: Array  # (num_clients,) bool: it leaves before
    delivered: Array  # (k,) int32: the first `size`, in order of arrival
    size: Array  # () int32


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

    Where clients come, go and fail, a client begins a job at the first server step at which it is
    available, with the model of that step. Its job is lost when it leaves before it is done, as the
    clock says in the round in which the job begins; the server notices at that moment. With
    `concurrency` another available client then begins at once, as after a delivery. A client that
    leaves after its delivery counts, but gets the new model only when it is back. If fewer than k
    jobs can still be delivered, the server steps with those; without any the round is empty. Of a
    job that begins within a round, a failure of `clocks.Failing` counts from the round's beginning.
    The metric `wasted_time` is how long clients worked in a round on jobs that will be lost.

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
        no_time = jnp.zeros(num_clients)
        no_client = jnp.zeros(num_clients, jnp.bool_)
        if self.concurrency is None:
            return BufferedState(no_time, begins=~no_client, fails=no_client)
        check_at_most(
            "buffered: concurrency",
            self.concurrency,
            "num_clients - k + 1",
            num_clients - self.k + 1,
        )
        drawn = draw(key, num_clients, self.concurrency + self.k - 1)
        begins = no_client.at[drawn[: self.concurrency]].set(True)
        later = drawn[self.concurrency :]
        return BufferedState(no_time, begins, no_client, busy=no_client, drawn=later)

    @override
    def select(
        self, key: Key, state: BufferedState, times: ClientTimes
    ) -> tuple[Cohort, BufferedState]:
        """The k jobs that end first."""
        if times.available is not None:
            return self._among_present(key, state, times)
        # r_i <- T_i where a job begins
        remaining = jnp.where(state.begins, times.realised, state.remaining)
        if state.busy is not None:
            busy = state.busy | state.begins
            return self._replacing(
                key, state._replace(busy=busy, remaining=remaining), times
            )
        # d = the k-th smallest r_i
        client_ids = k_fastest(remaining, self.k)
        duration = remaining[client_ids[-1]]
        # r_i <- r_i - d
        begins = jnp.zeros_like(state.begins).at[client_ids].set(True)
        cohort = make_cohort(client_ids)._replace(duration=duration)
        return cohort, state._replace(remaining=remaining - duration, begins=begins)

    def _replacing(
        self, key: Key, state: BufferedState, times: ClientTimes
    ) -> tuple[Cohort, BufferedState]:
        """Select the k jobs that end first, where another client begins at each end."""
        busy = jnp.asarray(state.busy)

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

        jobs = (busy, state.remaining)
        (busy, remaining), delivered = jax.lax.scan(
            replace, jobs, jnp.asarray(state.drawn)
        )
        last, busy = end(busy, remaining)
        duration = remaining[last]
        # for the next round: the first begins at the server step, the others as clients deliver
        drawn = draw(key, busy.shape[0], self.k, ~busy)
        begins = jnp.zeros_like(busy).at[drawn[0]].set(True)
        cohort = make_cohort(jnp.append(delivered, last))
        cohort = cohort._replace(duration=duration, next_ids=drawn)
        remaining = jnp.where(busy, remaining - duration, 0)
        return cohort, BufferedState(remaining, begins, state.fails, busy, drawn[1:])

    def _among_present(
        self, key: Key, state: BufferedState, times: ClientTimes
    ) -> tuple[Cohort, BufferedState]:
        """Select the k jobs that end first, where clients come, go and fail."""
        busy = ~state.begins if state.busy is None else state.busy
        # a job of the last round went on while the server waited for the first client
        ends = jnp.maximum(state.remaining - jnp.asarray(times.wait), 0)
        events = _Events(
            now=jnp.zeros((), ends.dtype),
            busy=busy,
            waiting=available_among(times, ~busy),
            begun=jnp.zeros_like(busy),
            since=jnp.zeros_like(ends),
            ends=ends,
            fails=state.fails,
            delivered=jnp.zeros(self.k, jnp.int32),
            size=jnp.int32(0),
        )
        events = self._until_full(key, events, times)

        duration = events.now
        worked = jnp.minimum(events.ends, duration) - events.since
        wasted = jnp.sum(jnp.where(events.fails, worked, 0))
        cohort = make_cohort(events.delivered, events.size)
        cohort = cohort._replace(duration=duration, jobs=jobs_of(events.begun, wasted))
        state = state._replace(
            remaining=jnp.where(events.busy, events.ends - duration, 0),
            fails=events.fails,
        )
        if state.busy is None:
            return cohort, state._replace(begins=~events.busy)
        return cohort, state._replace(busy=events.busy)

    def _until_full(self, key: Key, events: _Events, times: ClientTimes) -> _Events:
        """Let jobs begin and end until the buffer is full, or nobody works any more."""
        num_clients = events.busy.shape[0]
        priority = random_floats(key, num_clients)
        stays = jnp.asarray(times.stays)
        no_client = jnp.zeros_like(events.busy)

        def with_job(events: _Events, begins: Array) -> _Events:
            """Let flagged clients begin a job now."""
            # e_i <- min(t + T_i, s_i)
            done = events.now + times.realised
            return events._replace(
                busy=events.busy | begins,
                waiting=events.waiting & ~begins,
                begun=events.begun | begins,
                since=jnp.where(begins, events.now, events.since),
                ends=jnp.where(begins, jnp.minimum(done, stays), events.ends),
                fails=jnp.where(begins, done > stays, events.fails),
            )

        def ends_of(events: _Events) -> Array:
            return jnp.where(events.busy, events.ends, jnp.inf)

        def goes_on(events: _Events) -> Array:
            return (events.size < self.k) & jnp.isfinite(ends_of(events).min())

        def next_event(events: _Events) -> _Events:
            client = jnp.argmin(ends_of(events)).astype(jnp.int32)
            place = jnp.where(events.fails[client], self.k, events.size)
            events = events._replace(
                now=events.ends[client],
                busy=events.busy.at[client].set(False),
                delivered=events.delivered.at[place].set(client, mode="drop"),
                size=events.size + (place < self.k).astype(jnp.int32),
            )
            # another client begins at once, but for the last delivery, after which the server steps
            can_begin = events.waiting & (stays > events.now) & (events.size < self.k)
            new = jnp.argmax(jnp.where(can_begin, priority, -jnp.inf))
            return with_job(events, no_client.at[new].set(can_begin[new]))

        first = events.waiting
        if self.concurrency is not None:
            drawn = draw(key, num_clients, self.concurrency, events.waiting)
            free = self.concurrency - jnp.sum(events.busy, dtype=jnp.int32)
            is_free = jnp.arange(self.concurrency, dtype=jnp.int32) < free
            first = first & no_client.at[drawn].set(is_free)
        return jax.lax.while_loop(goes_on, next_event, with_job(events, first))
