"""Building blocks of policies: pools, orders of clients by time, cohorts, stages."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from fedjax_srp.base import Array, ClientTimes, Cohort, Key
from fedjax_srp.parts.checks import INT32_MAX


def draw_pool(
    key: Key, num_clients: int, size: int, available: Array | None = None
) -> Array:
    """`size` of the client ids as by `draw`, in no certain order; if that is all, unavailable ones are included."""
    if size == num_clients:
        return jnp.arange(num_clients, dtype=jnp.int32)
    return draw(key, num_clients, size, available)


def draw(key: Key, num_clients: int, size: int, among: Array | None = None) -> Array:
    """`size` of the client ids, uniformly without replacement, in a random order: (size,) int32.

    `among`, (num_clients,) bool, marks the clients to draw from; others are drawn only if these are too few.
    """
    # The largest of i.i.d. floats: XLA's top_k is fast for floats only (100 of 1,000,000 clients, CPU: 2 ms, against
    # 210 for integers and 420 for `random.choice`).
    priority = random_floats(key, num_clients)
    if among is not None:
        priority = jnp.where(among, priority, -jnp.inf)
    return lax.top_k(priority, size)[1].astype(jnp.int32)


def random_floats(key: Key, size: int) -> Array:
    """I.i.d. floats for ranking, (size,) float32; ties, which favour the lower id, are very rare.

    A uniform float has only 23 random bits. Here two bits of the exponent are fixed, which leaves 2**30 values, all
    normal numbers.
    """
    bits = jax.random.bits(key, (size,), jnp.uint32)
    bits = bits & jnp.uint32(0xBFFFFFFF) | jnp.uint32(0x20000000)
    return lax.bitcast_convert_type(bits, jnp.float32)


def order_by_time(times: Array, client_ids: Array) -> Array:
    """The given ids, fastest first, ties by id; `times` are those of all clients."""
    return lax.sort((times[client_ids], client_ids), num_keys=2)[1]


def speed_tiers(expected: Array, tiers: int) -> Array:
    """The tier of each client, 0 the fastest, (num_clients,) int32: of equal size, the last with the remainder."""
    rank = jnp.arange(expected.shape[0], dtype=jnp.int32)
    by_rank = jnp.minimum(rank // (expected.shape[0] // tiers), tiers - 1)
    return jnp.zeros_like(rank).at[order_by_time(expected, rank)].set(by_rank)


def k_fastest(times: Array, k: int) -> Array:
    """The ids of the `k` fastest clients, fastest first, ties by id: (k,) int32; cheap where k is small."""
    # Without a barrier XLA moves the slice of the ids into its readers and sorts everything.
    return lax.optimization_barrier(lax.top_k(-times, k)[1]).astype(jnp.int32)


def make_cohort(
    client_ids: Array, size: Array | None = None, stage: Array | None = None
) -> Cohort:
    """A cohort with one unit of work each; by default all clients and stage 0."""
    pool, first_stage = (
        jnp.asarray(client_ids.shape[0], jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    return Cohort(
        client_ids=client_ids,
        size=pool if size is None else size,
        work=jnp.ones_like(client_ids),
        stage=first_stage if stage is None else stage,
    )


def there(times: ClientTimes, wanted: Array) -> Array:
    """Flags of the wanted clients that are available, (num_clients,) bool."""
    return wanted if times.available is None else wanted & times.available


def only(times: ClientTimes, wanted: Array) -> ClientTimes:
    """Times under which only the wanted clients are available, if the clock has availability."""
    return times if times.available is None else times._replace(available=wanted)


def ask(
    times: ClientTimes,
    client_ids: Array,
    size: Array | None = None,
    stage: Array | None = None,
    by: str = "realised",
) -> Cohort:
    """The cohort of a server that wants the `size` fastest of the given clients; by default all of them.

    If clients come and go, it asks the available ones. By realised times it asks all of these and continues when `size`
    have reported; by expected times it asks the `size` fastest and waits for them. It does not wait for a client that
    has left.
    """
    if times.available is None:
        return pick(times, client_ids, size, stage, by)
    if by == "realised":
        return until(pick(times, client_ids, None, stage), times, size)
    return until(pick(times, client_ids, size, stage, by), times)


def pick(
    times: ClientTimes,
    client_ids: Array,
    size: Array | None = None,
    stage: Array | None = None,
    by: str = "realised",
) -> Cohort:
    """The `size` fastest available clients of those given, for one unit of work each, even if they will leave early."""
    ranking = getattr(times, by)
    if times.available is not None:
        ranking = jnp.where(times.available, ranking, jnp.inf)
        there = jnp.sum(times.available[client_ids], dtype=jnp.int32)
        size = there if size is None else jnp.minimum(size, there)
    return make_cohort(order_by_time(ranking, client_ids), size, stage)


def until(
    cohort: Cohort,
    times: ClientTimes,
    quorum: Array | int | None = None,
    limit: Array | float | None = None,
) -> Cohort:
    """The cohort of a server that asks these clients and ends the round early, with the clients that have reported.

    The round ends at the `quorum`-th report or at the time `limit`; without a report by then, at the first one; at the
    latest at `cohort.duration`, or without one when all clients are done or have left.
    """
    position = jnp.arange(cohort.client_ids.shape[0], dtype=jnp.int32)
    asked = cohort.size if cohort.asked is None else cohort.asked
    works, needed = position < asked, work_times(cohort, times)
    stays = needed if times.stays is None else times.stays[cohort.client_ids]
    reported = jnp.where(works & (needed <= stays), needed, jnp.inf)
    gone = jnp.max(
        jnp.where(works & (needed > stays), stays, jnp.zeros((), needed.dtype))
    )
    keys = (
        reported,
        (~works).astype(jnp.int32),
        cohort.client_ids,
    )  # clients that do not report come last
    reported, _, client_ids, work = lax.sort((*keys, cohort.work), num_keys=3)
    # From here on compare times with `reported` only: recomputed ones may differ in the last bit.
    end = jnp.full_like(gone, jnp.inf)
    if limit is not None:
        end = jnp.minimum(end, jnp.maximum(limit, reported[0]))
    if quorum is not None:
        end = jnp.minimum(end, reported[quorum - 1])
    size = jnp.sum(jnp.isfinite(reported) & (reported <= end), dtype=jnp.int32)
    for most in (cohort.size, quorum):  # if several report at once
        size = size if most is None else jnp.minimum(size, most)
    last = jnp.maximum(
        gone,
        jnp.max(
            jnp.where(jnp.isfinite(reported), reported, jnp.zeros((), reported.dtype))
        ),
    )
    end = jnp.minimum(end, last if cohort.duration is None else cohort.duration)
    return Cohort(client_ids, size, work, cohort.stage, end, asked)


def work_times(cohort: Cohort, times: ClientTimes) -> Array:
    """(pool,) float: time of each client's work, T_i * work; a clock's communication counts once."""
    if times.by_work is not None:  # clipped to the known numbers of units
        return times.by_work[
            cohort.client_ids, jnp.clip(cohort.work - 1, 0, times.by_work.shape[1] - 1)
        ]
    work = cohort.work.astype(times.realised.dtype)
    durations = times.realised[cohort.client_ids] * work
    if times.communication is not None:
        once = (
            times.communication
            if not times.communication.ndim
            else times.communication[cohort.client_ids]
        )
        durations -= (work - 1) * once
    return durations


def with_partial_work(
    cohort: Cohort, times: ClientTimes, max_work: int, on_time: float
) -> Cohort:
    """The cohort with as many units of work as fit into the time in which a share of its clients do all of it.

    The server waits until this share has done `max_work` units; the others then send what they have done, at least one
    unit, for which the server waits too. If too few stay that long, it waits until the last one is done or has left.

    Args:
        cohort: the participants.
        times: of all clients; realised times are used, with communication once.
        max_work: most units of work of a client.
        on_time: share of the cohort that does all of it, rounded up, at least one client.
    """
    pool = cohort.client_ids.shape[0]
    takes_part = jnp.arange(pool, dtype=jnp.int32) < cohort.size
    units = jnp.arange(1, max_work + 1, dtype=jnp.int32)[:, None]
    # (max_work, pool) float: the time of 1, 2, ... units of each client
    done = jax.vmap(lambda work: work_times(cohort._replace(work=work), times))(
        jnp.tile(units, (1, pool))
    )
    stays = jnp.inf if times.stays is None else times.stays[cohort.client_ids]
    reported = jnp.sort(jnp.where(takes_part & (done[-1] <= stays), done[-1], jnp.inf))
    number = np.maximum(
        1, np.ceil(on_time * np.arange(pool + 1) - 1e-9)
    )  # for each size of the cohort
    end = reported[jnp.asarray(number, jnp.int32)[cohort.size] - 1]
    last = jnp.max(jnp.where(takes_part, jnp.minimum(done[-1], stays), 0))
    end = jnp.where(jnp.isfinite(end), end, last)
    # rounding may lift the time of the last unit that fits above the end
    cohort = cohort._replace(
        work=jnp.max(jnp.where(done <= end * (1 + 1e-6), units, 1), axis=0)
    )
    return cohort if times.available is None else until(cohort, times)


def check_at_most(argument: str, value: int, limit_name: str, limit: int) -> None:
    """Raise a ValueError if `value` exceeds the limit; a traced value is not checked."""
    if not isinstance(value, Tracer) and value > limit:
        raise ValueError(
            f"{argument}={value} is larger than {limit_name}={limit}; choose at most {limit}"
        )


def stage_sizes(initial: int, pool: int) -> list[int]:
    """n of every stage: initial * 2**r while below the pool, then the pool."""
    sizes = [initial]
    while sizes[-1] < pool:
        sizes.append(min(pool, 2 * sizes[-1]))
    return sizes


def stages_ended(rounds: Array, lengths: Array | int | tuple[Array | int, ...]) -> Array:
    """Number of stages that have ended after `rounds` rounds, () int32; INT32_MAX after the last listed length."""
    if not isinstance(lengths, tuple):
        return rounds // jnp.asarray(lengths, jnp.int32)
    ended = jnp.int32(0)
    for length in lengths:
        left = rounds - jnp.asarray(length, jnp.int32)
        ended, rounds = (
            ended + (left >= 0).astype(jnp.int32),
            jnp.where(left >= 0, left, -1),
        )
    return jnp.where(rounds >= 0, INT32_MAX, ended)
