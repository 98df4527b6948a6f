"""Groups of clients whose work is such that they arrive together."""

from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    check_at_most,
    make_cohort,
    order_by_time,
)
from fedjax_srp.parts.part import AtLeast, Count, Share, part


class CompassState(NamedTuple):
    """Clients and groups after the last round; times from then on.

    A group has the id of the client that created it, which stays in it until the group ends.
    """

    # (num_clients,) float, time until the client's job ends, at most 0 if it has; unused if a job begins
    remaining: Array
    begins: Array  # (num_clients,) bool: clients that begin a job now
    work: Array  # (num_clients,) int32: units of the client's job
    took: Array  # (num_clients,) float: time of a unit of the job; unused if a job begins
    # (num_clients,) float: estimate of the time of a unit; nan before the first delivery
    pace: Array
    group: Array  # (num_clients,) int32: the client's group; num_clients for none
    expected: Array  # (num_clients,) float: time until the group is expected
    latest: Array  # (num_clients,) float: time until the group ends at the latest; -inf for none
    created: Array  # (num_clients,) int32: grows from group to group


@part
class Compass(ParticipationPolicy):
    """Each job has as many units of work as let its client arrive together with others.

    FedCompass (Li, Chaturvedi, He et al., 2024), after its authors' code. A client joins the group
    in which it can do most work, between `min_work` and `max_work` units, until the group is
    expected. If there is none it creates a group, and does as much as lets it arrive when the
    clients of another group will be back from their next jobs. A group ends when all its clients
    have arrived, or when the time from its creation is `latest_factor` times what was expected.
    Speeds are learned: the first jobs have `max_work` units, and the estimate moves towards the
    last job's pace by `pace_momentum`.

    A round of the run is one of three events, `Cohort.stage`, for the algorithm `FedCompass`:

    * 0, a group ends: those that arrived deliver together.
    * 1, a client arrives too late for its group, alone. Its update waits for the next group.
    * 2, a client delivers its first job, alone.

    Then these clients begin their next jobs with the new model, the fastest first. With equal
    speeds all clients are one group from their second jobs on. An algorithm without lateness takes
    each event as a round. Clocks under which clients come and go are refused. Each client that
    delivers costs the policy a pass over all clients: the method is for silos.

    A communication cost changes who arrives with whom, so none can be added afterwards: give it to
    the clock, `clocks.Fixed(..., communication=10)`.

    Args:
        min_work: Q_min, least units of work of a job.
        max_work: Q_max, most units of work of a job; five times Q_min in the authors' example.
        latest_factor: lambda, how much longer a group may take than expected.
        pace_momentum: weight of the last job in the estimate of a client's speed.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Compass(min_work=1, max_work=4)
        >>> times = jnp.array([1.0, 2.0])
        >>> state = policy.init(jax.random.key(0), 2)
        >>> for _ in range(4):  # at times 4, 8, 8 and 12
        ...     now = srp.ClientTimes(times, times)
        ...     cohort, state = policy.select(jax.random.key(1), state, now)
        ...     size = int(cohort.size)
        ...     print(cohort.client_ids[:size], cohort.work[:size], int(cohort.stage))
        [0] [4] 2
        [0] [4] 0
        [1] [4] 2
        [0 1] [4 2] 0
    """

    name: ClassVar[str] = "compass"
    asynchronous: ClassVar[bool] = True
    min_work: Count = 1
    max_work: Count = 5  # pyright: ignore[reportIncompatibleMethodOverride]
    latest_factor: Annotated[float, AtLeast(1), "give 1, or e.g. 1.5"] = 1.5
    pace_momentum: Share = 0.9

    def __post_init__(self) -> None:
        check_at_most("compass: min_work", self.min_work, "max_work", self.max_work)

    @override
    def init(self, key: Key, num_clients: int) -> CompassState:
        no_time = jnp.zeros(num_clients)
        no_group = jnp.full(num_clients, -jnp.inf)
        return CompassState(
            remaining=no_time,
            begins=jnp.ones(num_clients, jnp.bool_),
            work=jnp.full(num_clients, self.max_work, jnp.int32),
            took=no_time,
            pace=jnp.full(num_clients, jnp.nan),
            group=jnp.full(num_clients, num_clients, jnp.int32),
            expected=no_group,
            latest=no_group,
            created=jnp.zeros(num_clients, jnp.int32),
        )

    @override
    def select(
        self, key: Key, state: CompassState, times: ClientTimes
    ) -> tuple[Cohort, CompassState]:
        """The next group that ends, or the client that delivers alone before it."""
        num_clients = times.realised.shape[0]
        ids = jnp.arange(num_clients, dtype=jnp.int32)
        lasts = times.of_work(make_cohort(ids)._replace(work=state.work))
        ends = jnp.where(state.begins, lasts, state.remaining)
        took = jnp.where(state.begins, lasts / state.work.astype(lasts.dtype), state.took)
        has_group = state.group < num_clients
        latest = state.latest[state.group]  # of the client's group; unused without one
        alone = ~has_group | (ends > latest)

        # a group ends with its last client, if one arrives in time
        nobody = jnp.full_like(ends, jnp.inf)
        first = nobody.at[state.group].min(ends, mode="drop")
        last = (-nobody).at[state.group].max(ends, mode="drop")
        closes = jnp.where(
            first <= state.latest, jnp.minimum(last, state.latest), jnp.inf
        )
        group = jnp.argmin(closes).astype(jnp.int32)
        single = jnp.where(alone, ends, jnp.inf)
        client = jnp.argmin(single).astype(jnp.int32)
        is_group = closes[group] <= single[client]
        duration = jnp.maximum(jnp.minimum(closes[group], single[client]), 0)
        is_first = jnp.isnan(state.pace[client])
        stage = jnp.where(is_group, 0, jnp.where(is_first, 2, 1)).astype(jnp.int32)

        arrived = ends <= duration
        delivers = jnp.where(is_group, arrived & (state.group == group), ids == client)
        # c_i <- (1 - m) c_i + m times the last job's
        is_new = state.begins | (state.remaining > 0)
        measured = jnp.where(alone, delivers, arrived & is_new)
        moved = state.pace + self.pace_momentum * (took - state.pace)
        moved = jnp.where(jnp.isnan(state.pace), took, moved)
        pace = jnp.where(measured, moved, state.pace)

        size = jnp.sum(delivers, dtype=jnp.int32)
        order = order_by_time(jnp.where(delivers, pace, jnp.inf), ids)
        cohort = make_cohort(order, size, stage)
        cohort = cohort._replace(work=state.work[order], duration=duration)

        # those that are too late for their group have left it
        leaves = delivers | (alone & (latest <= duration))
        ended = is_group & (ids == group)
        state = CompassState(
            remaining=ends - duration,
            begins=delivers,
            work=state.work,
            took=took,
            pace=pace,
            group=jnp.where(leaves, num_clients, state.group),
            expected=jnp.where(ended, -jnp.inf, state.expected - duration),
            latest=jnp.where(ended, -jnp.inf, state.latest - duration),
            created=state.created,
        )
        assign = lambda place, state: self._assign(order[place], state)
        return cohort, jax.lax.fori_loop(0, size, assign, state)

    def _assign(self, client: Array, state: CompassState) -> CompassState:
        """Let a client join a group, or create one, for its next job."""
        pace = state.pace[client]
        is_open = state.latest > 0

        def units_until(time: Array) -> Array:
            # rounding may lift the time of the last unit that fits above the end
            return jnp.floor(time / pace * (1 + 1e-6))

        # Q_ig <- floor((T_g - t) / c_i); join the group with the largest one in [Q_min, Q_max]
        units = units_until(state.expected)
        fits = is_open & (units >= self.min_work) & (units <= self.max_work)
        most = jnp.max(jnp.where(fits, units, 0))
        newest = jnp.where(fits & (units == most), state.created, -1)
        joined = jnp.argmax(newest).astype(jnp.int32)
        joins = fits.any()

        # else the largest one up to Q_max until the fastest client of a group is back with Q_max units
        fastest = jnp.full_like(state.pace, jnp.inf).at[state.group]
        fastest = fastest.min(state.pace, mode="drop")
        units = units_until(state.latest + self.max_work * fastest)
        fits = is_open & (units <= self.max_work)
        own = jnp.maximum(jnp.max(jnp.where(fits, units, 0)), self.min_work)
        own = jnp.where(fits.any(), own, self.max_work)

        group = jnp.where(joins, joined, client)
        work = jnp.where(joins, most, own)
        expected = jnp.where(joins, state.expected[group], work * pace)
        latest = jnp.where(joins, state.latest[group], expected * self.latest_factor)
        created = jnp.where(joins, state.created[group], state.created.max() + 1)
        return state._replace(
            work=state.work.at[client].set(work.astype(jnp.int32)),
            group=state.group.at[client].set(group),
            expected=state.expected.at[group].set(expected),
            latest=state.latest.at[group].set(latest),
            created=state.created.at[group].set(created),
        )
