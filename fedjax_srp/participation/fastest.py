"""Only the fast clients."""

from typing import Literal

from fedjax_srp._checks import check_choice, check_integer
from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import (
    check_at_most,
    k_fastest,
    make_cohort,
    stateless_update,
    times_by,
)
from fedjax_srp.parts import interned
from fedjax_srp.record import recorded


@interned
@recorded
def fastest(k: int, by: Literal["realised", "expected"] = "realised") -> ParticipationPolicy:
    """In every round the `k` fastest of all clients take part; the others never do if speeds are fixed.

    The baseline "k fastest nodes" of FLANP, section 5. By realised times the server asks everybody and goes on when k
    answers are in (SRPFL, Remark 3.2); by expected times it asks those it believes to be fast.

    Args:
        k: clients per round.
        by: the times that rank the clients.

    Returns:
        The policy; its cohorts are ordered by the times that rank, ties by client id.

    Raises:
        ValueError: if k is no integer or below 1, `by` is unknown, or, in `init`, k is larger than num_clients.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fedjax_srp import participation
        >>> from fedjax_srp.base import ClientTimes
        >>> policy = participation.fastest(2)
        >>> times = jnp.array([3.0, 1.0, 2.0])
        >>> state = policy.init(jax.random.key(0), 3)
        >>> policy.select(jax.random.key(1), state, ClientTimes(times, times))[0].client_ids.tolist()
        [1, 2]
    """
    k = check_integer("fastest: k", k, 1)
    check_choice("fastest: by", by, ("realised", "expected"))

    def init(key: Key, num_clients: int) -> tuple[()]:
        del key
        check_at_most("fastest: k", k, "num_clients", num_clients)
        return ()

    def select(key: Key, state: tuple[()], times: ClientTimes) -> tuple[Cohort, tuple[()]]:
        del key
        return make_cohort(k_fastest(times_by(times, by), k)), state

    return ParticipationPolicy("fastest", init, select, stateless_update)
