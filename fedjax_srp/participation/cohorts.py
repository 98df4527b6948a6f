"""Building blocks of policies: pools, orders of clients by time, cohorts, stages."""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from fedjax_srp.base import Array, ClientTimes, Cohort, Jobs, Key
from fedjax_srp.parts.checks import INT32_MAX
from fedjax_srp.parts.part import AtLeast

Growth = Annotated[int, AtLeast(2), "a stage grows to that many times its clients"]


def draw_pool(
    key: Key, num_clients: int, size: int, available: Array | None = None
) -> Array:
    """Draw as `draw`, in no certain order; a pool of all clients has the unavailable ones too."""
    if size == num_clients:
        return jnp.arange(num_clients, dtype=jnp.int32)
    return draw(key, num_clients, size, available)


def draw(key: Key, num_clients: int, size: int, among: Array | None = None) -> Array:
    """`size` of the client ids, uniformly without replacement, in a random order: (size,) int32.

    `among`, (num_clients,) bool, marks the clients to draw from; others are drawn only if these are
    too few.
    """
    # The largest of i.i.d. floats: XLA's top_k is fast for floats only (100 of 1,000,000 clients,
    # CPU: 2 ms, against 210 for integers and 420 for `random.choice`).
    priority = random_floats(key, num_clients)
    if among is not None:
        priority = jnp.where(among, priority, -jnp.inf)
    return lax.top_k(priority, size)[1].astype(jnp.int32)


def random_floats(key: Key, size: int) -> Array:
    """I.i.d. floats for ranking, (size,) float32; ties, which favour the lower id, are very rare.

    A uniform float has only 23 random bits. Here two bits of the exponent are fixed, which leaves
    2**30 values, all normal numbers.
    """
    bits = jax.random.bits(key, (size,), jnp.uint32)
    bits = bits & jnp.uint32(0xBFFFFFFF) | jnp.uint32(0x20000000)
    return lax.bitcast_convert_type(bits, jnp.float32)


def order_by_time(times: Array, client_ids: Array) -> Array:
    """Sort client ids, fastest first, ties by id; `times` are those of all clients."""
    return order_by(times[client_ids], client_ids)


def order_by(values: Array, client_ids: Array) -> Array:
    """Sort client ids by a value of each, ascending, nan last, ties by id.

    A value of 32 bits and its client's id are sorted as one integer of 64 bits, five times as fast
    as a pair on a CPU (a million: 80 ms).
    """
    if values.dtype != jnp.float32:
        return lax.sort((values, client_ids), num_keys=2)[1]
    # one zero and one nan
    values = jnp.where(values == 0, jnp.float32(0), values)
    values = jnp.where(jnp.isnan(values), jnp.float32(jnp.nan), values)
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    # integers in the order of the floats
    sign = jnp.uint32(1 << 31)
    bits = jnp.where(bits >= sign, ~bits, bits | sign)
    with jax.enable_x64(True):
        packed = bits.astype(jnp.uint64) << jnp.uint64(32) | client_ids.astype(jnp.uint64)
        last_bits = lax.sort(packed) & jnp.uint64(0xFFFFFFFF)
        return last_bits.astype(client_ids.dtype)


def speed_tiers(expected: Array, tiers: int) -> Array:
    """Return the tier of each client, 0 the fastest, (num_clients,) int32.

    Tiers have equal sizes; the last one takes the remainder.
    """
    rank = jnp.arange(expected.shape[0], dtype=jnp.int32)
    by_rank = jnp.minimum(rank // (expected.shape[0] // tiers), tiers - 1)
    return jnp.zeros_like(rank).at[order_by_time(expected, rank)].set(by_rank)


def k_fastest(times: Array, k: int) -> Array:
    """Return the ids of the `k` fastest clients, fastest first, ties by id: (k,) int32."""
    # Without a barrier XLA moves the slice of the ids into its readers and sorts everything.
    return lax.optimization_barrier(lax.top_k(-times, k)[1]).astype(jnp.int32)


def make_cohort(
    client_ids: Array, size: Array | None = None, stage: Array | None = None
) -> Cohort:
    """Make a cohort with one unit of work each; by default of all these clients, in stage 0."""
    if size is None:
        size = jnp.asarray(client_ids.shape[0], jnp.int32)
    if stage is None:
        stage = jnp.zeros((), jnp.int32)
    return Cohort(client_ids, size, work=jnp.ones_like(client_ids), stage=stage)


def available_among(times: ClientTimes, wanted: Array) -> Array:
    """Return flags of the wanted clients that are available, (num_clients,) bool."""
    if times.available is None:
        return wanted
    return wanted & times.available


def restricted_to(times: ClientTimes, wanted: Array) -> ClientTimes:
    """Return times under which only the wanted clients are available.

    A clock without availability has no flags to restrict: its times stay as they are.
    """
    if times.available is None:
        return times
    return times._replace(available=wanted)


def request(
    times: ClientTimes,
    client_ids: Array,
    size: Array | None = None,
    stage: Array | None = None,
    by: str = "realised",
) -> Cohort:
    """Ask clients for work until the `size` fastest have reported; by default all of them.

    If clients come and go, it asks the available ones. By realised times it asks all of these and
    continues when `size` have reported; by expected times it asks the `size` fastest and waits for
    them. It does not wait for a client that has left.
    """
    if times.available is None:
        return fastest_available(times, client_ids, size, stage, by)
    if by == "realised":
        everyone = fastest_available(times, client_ids, None, stage)
        return closed_after(everyone, times, quorum=size)
    return closed_after(fastest_available(times, client_ids, size, stage, by), times)


def fastest_available(
    times: ClientTimes,
    client_ids: Array,
    size: Array | None = None,
    stage: Array | None = None,
    by: str = "realised",
) -> Cohort:
    """Select the `size` fastest available clients of `client_ids`, even if they will leave early.

    Each does one unit of work. `by` names the times that rank them, "realised" or "expected".
    """
    ranking = getattr(times, by)
    if times.available is not None:
        ranking = jnp.where(times.available, ranking, jnp.inf)
        num_available = jnp.sum(times.available[client_ids], dtype=jnp.int32)
        size = num_available if size is None else jnp.minimum(size, num_available)
    return make_cohort(order_by_time(ranking, client_ids), size, stage)


def closed_after(
    cohort: Cohort,
    times: ClientTimes,
    quorum: Array | int | None = None,
    limit: Array | float | None = None,
) -> Cohort:
    """End a cohort's round early, with the clients that have reported by then.

    The round ends at the `quorum`-th report or at the time `limit`; without a report by then, at
    the first one; at the latest at `cohort.duration`, or without one when all clients are done or
    have left.
    """
    position = jnp.arange(cohort.client_ids.shape[0], dtype=jnp.int32)
    asked = cohort.size if cohort.asked is None else cohort.asked
    works = position < asked
    needed = times.of_work(cohort)
    stays = needed if times.stays is None else times.stays[cohort.client_ids]
    reported = jnp.where(works & (needed <= stays), needed, jnp.inf)
    gone = jnp.max(
        jnp.where(works & (needed > stays), stays, jnp.zeros((), needed.dtype))
    )
    # clients that do not report come last
    is_idle = (~works).astype(jnp.int32)
    rows = (reported, is_idle, cohort.client_ids, cohort.work)
    reported, _, client_ids, work = lax.sort(rows, num_keys=3)
    # From here on compare times with `reported` only: recomputed ones may differ in the last bit.
    end = jnp.full_like(gone, jnp.inf)
    if limit is not None:
        end = jnp.minimum(end, jnp.maximum(limit, reported[0]))
    if quorum is not None:
        end = jnp.minimum(end, reported[quorum - 1])
    has_reported = jnp.isfinite(reported)
    size = jnp.sum(has_reported & (reported <= end), dtype=jnp.int32)
    size = jnp.minimum(size, cohort.size)
    if quorum is not None:  # several may report at once
        size = jnp.minimum(size, quorum)
    duration = cohort.duration
    if duration is None:  # all clients are done or have left
        last_report = jnp.max(
            jnp.where(has_reported, reported, jnp.zeros((), reported.dtype))
        )
        duration = jnp.maximum(gone, last_report)
    end = jnp.minimum(end, duration)
    return Cohort(client_ids, size, work, cohort.stage, duration=end, asked=asked)


def jobs_of(begins: Array, wasted: Array | None = None) -> Jobs:
    """Make the jobs of a round from flags of the clients that begin one, (num_clients,) bool."""
    ids = jnp.arange(begins.shape[0], dtype=jnp.uint32)
    # plain integers, as in `order_by`; a first bit puts the others last
    later = jnp.uint32(1 << 31)
    order = lax.sort(jnp.where(begins, ids, ids | later)) & ~later
    client_ids = order.astype(jnp.int32)
    return Jobs(client_ids, jnp.sum(begins, dtype=jnp.int32), wasted)


def with_partial_work(
    cohort: Cohort, times: ClientTimes, max_work: int, on_time: float
) -> Cohort:
    """Give each client as many units of work as fit into the time of a share of the cohort.

    The server waits until this share has done `max_work` units; the others then send what they have
    done, at least one unit, for which the server waits too. If too few stay that long, it waits
    until the last one is done or has left.

    Args:
        cohort: the participants.
        times: of all clients; realised times are used, with communication once.
        max_work: most units of work of a client.
        on_time: share of the cohort that does all of it, rounded up, at least one client.
    """
    pool = cohort.client_ids.shape[0]
    takes_part = jnp.arange(pool, dtype=jnp.int32) < cohort.size
    units = jnp.arange(1, max_work + 1, dtype=jnp.int32)[:, None]

    def time_of(work: Array) -> Array:
        return times.of_work(cohort._replace(work=work))

    # (max_work, pool) float: the time of 1, 2, ... units of each client
    done = jax.vmap(time_of)(jnp.tile(units, (1, pool)))
    all_done = done[-1]
    stays = jnp.inf if times.stays is None else times.stays[cohort.client_ids]
    reported = jnp.sort(jnp.where(takes_part & (all_done <= stays), all_done, jnp.inf))
    # the number of clients to wait for, for each size of the cohort
    quorums = np.maximum(1, np.ceil(on_time * np.arange(pool + 1) - 1e-9))
    end = reported[jnp.asarray(quorums, jnp.int32)[cohort.size] - 1]
    last = jnp.max(jnp.where(takes_part, jnp.minimum(all_done, stays), 0))
    end = jnp.where(jnp.isfinite(end), end, last)
    # rounding may lift the time of the last unit that fits above the end
    fits = done <= end * (1 + 1e-6)
    cohort = cohort._replace(work=jnp.max(jnp.where(fits, units, 1), axis=0))
    if times.available is None:
        return cohort
    return closed_after(cohort, times)


def check_at_most(argument: str, value: int, limit_name: str, limit: int) -> None:
    """Raise a ValueError if `value` exceeds the limit; a traced value is not checked."""
    if not isinstance(value, Tracer) and value > limit:
        raise ValueError(
            f"{argument}={value} is larger than {limit_name}={limit}; choose at most {limit}"
        )


def stage_sizes(initial: int, pool: int, growth: int = 2) -> list[int]:
    """Return n of every stage: initial * growth**r while below the pool, then the pool."""
    sizes = [initial]
    while sizes[-1] < pool:
        sizes.append(min(pool, growth * sizes[-1]))
    return sizes


def stages_ended(rounds: Array, lengths: Array | int | tuple[Array | int, ...]) -> Array:
    """Return the number of stages that have ended after `rounds` rounds, () int32.

    It is INT32_MAX after the last listed length.
    """
    if not isinstance(lengths, tuple):
        return rounds // jnp.asarray(lengths, jnp.int32)
    ended = jnp.int32(0)
    for length in lengths:
        left = rounds - jnp.asarray(length, jnp.int32)
        has_ended = left >= 0
        ended = ended + has_ended.astype(jnp.int32)
        rounds = jnp.where(has_ended, left, -1)
    return jnp.where(rounds >= 0, INT32_MAX, ended)
