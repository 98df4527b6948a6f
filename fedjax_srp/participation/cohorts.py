"""What policies share, yours too: pools, orders of clients by time, cohorts."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_srp.base import Array, ClientTimes, Cohort, Key, PolicyState, RoundInfo


def draw_pool(key: Key, num_clients: int, size: int) -> Array:
    """`size` of the client ids, uniformly without replacement, in no order: (size,) int32. All of them need no draw."""
    if size == num_clients:
        return jnp.arange(num_clients, dtype=jnp.int32)
    # The largest of i.i.d. floats: XLA's top_k is fast for floats only (100 of 1,000,000 clients, CPU: 2 ms, against
    # 210 for integers and 420 for `random.choice`).
    return lax.top_k(random_floats(key, num_clients), size)[1].astype(jnp.int32)


def random_floats(key: Key, size: int) -> Array:
    """I.i.d. floats to rank by, (size,) float32: ties, which favour the lower id, hardly ever happen.

    A uniform float has just 23 random bits. Here two bits of the exponent are fixed, which leaves 2**30 values, all of
    them normal numbers.
    """
    bits = jax.random.bits(key, (size,), jnp.uint32)
    bits = bits & jnp.uint32(0xBFFFFFFF) | jnp.uint32(0x20000000)
    return lax.bitcast_convert_type(bits, jnp.float32)


def order_by_time(times: Array, client_ids: Array) -> Array:
    """The given ids, fastest first, ties by id; `times` are those of all clients."""
    return lax.sort((times[client_ids], client_ids), num_keys=2)[1]


def k_fastest(times: Array, k: int) -> Array:
    """The ids of the `k` fastest clients, fastest first, ties by id: (k,) int32; cheap where k is small."""
    return lax.top_k(-times, k)[1].astype(jnp.int32)


def times_by(times: ClientTimes, by: str) -> Array:
    """The times a policy ranks clients by."""
    return times.expected if by == "expected" else times.realised


def make_cohort(client_ids: Array, size: Array | None = None, stage: Array | None = None) -> Cohort:
    """A cohort of one unit of work each; everybody and stage 0 unless told otherwise."""
    everybody, first_stage = jnp.asarray(client_ids.shape[0], jnp.int32), jnp.zeros((), jnp.int32)
    return Cohort(
        client_ids=client_ids,
        size=everybody if size is None else size,
        work=jnp.ones_like(client_ids),
        stage=first_stage if stage is None else stage,
    )


def stateless_update(state: PolicyState, info: RoundInfo) -> PolicyState:
    """The `update` of policies that do not change over rounds."""
    del info
    return state


def check_at_most(argument: str, value: int, limit_name: str, limit: int) -> None:
    """Raises a ValueError of one line if `value` exceeds the limit."""
    if value > limit:
        raise ValueError(f"{argument}={value} is larger than {limit_name}={limit}; choose at most {limit}")
