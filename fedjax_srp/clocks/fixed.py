"""Times drawn once for the whole run."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from fedjax_srp.base import Array, ClientTimes, Clock, Key
from fedjax_srp.clocks._checks import check_work
from fedjax_srp.clocks.distributions import Distribution, check_distribution, draw


class FixedState(NamedTuple):
    """The times of all rounds."""

    times: Array  # (num_clients,) float, work * T_i


def fixed(distribution: Distribution, work: ArrayLike = 1.0) -> Clock:
    """Every client keeps one time: T_i is drawn once, and is known beforehand.

    SRPFL, section 5, "fixed speeds": `fixed(exponential(1.0))`. FLANP charges tau * T_i for tau local steps:
    `work=tau`.

    Args:
        distribution: of T_i, in time units.
        work: units of local work in a round; multiplies the times.

    Returns:
        The clock; expected and realised times are equal.

    Raises:
        ValueError: for what is no distribution, or work that is negative or not finite.

    Example:
        >>> import jax
        >>> from fedjax_srp import clocks
        >>> clock = clocks.fixed(clocks.exponential(1.0), work=5)
        >>> times, state = clock.sample(jax.random.key(1), clock.init(jax.random.key(0), 10))
        >>> bool((times.expected == times.realised).all())
        True
    """
    check_distribution("fixed", distribution)
    check_work("fixed", work)

    def init(key: Key, num_clients: int) -> FixedState:
        return FixedState(jnp.asarray(work, dtype=float) * draw(key, distribution, num_clients))

    def sample(key: Key, state: FixedState) -> tuple[ClientTimes, FixedState]:
        del key
        return ClientTimes(expected=state.times, realised=state.times), state

    return Clock("fixed", init, sample)
