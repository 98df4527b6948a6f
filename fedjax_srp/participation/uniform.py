"""A few clients at random."""

from fedjax_srp._checks import check_integer
from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    check_at_most,
    draw_pool,
    make_cohort,
    order_by_time,
    stateless_update,
)
from fedjax_srp.parts import interned
from fedjax_srp.record import recorded


@interned
@recorded
def uniform(k: int) -> ParticipationPolicy:
    """In every round `k` clients are drawn uniformly without replacement, whatever their speed.

    FedRep's sampling of a fraction r = k / N of the clients (FedRep, Algorithm 1); with k = N the cohorts of `full`.

    Args:
        k: clients per round.

    Returns:
        The policy; its cohorts are ordered by realised time, ties by client id.

    Raises:
        ValueError: if k is no integer or below 1, or, in `init`, larger than num_clients.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fedjax_srp import participation
        >>> from fedjax_srp.base import ClientTimes
        >>> policy = participation.uniform(10)
        >>> times = jnp.arange(100.0)
        >>> state = policy.init(jax.random.key(0), 100)
        >>> policy.select(jax.random.key(1), state, ClientTimes(times, times))[0].client_ids.shape
        (10,)
    """
    k = check_integer("uniform: k", k, 1)

    def init(key: Key, num_clients: int) -> tuple[()]:
        del key
        check_at_most("uniform: k", k, "num_clients", num_clients)
        return ()

    def select(key: Key, state: tuple[()], times: ClientTimes) -> tuple[Cohort, tuple[()]]:
        pool = draw_pool(key, times.realised.shape[0], k)
        return make_cohort(order_by_time(times.realised, pool)), state

    return ParticipationPolicy("uniform", init, select, stateless_update)
