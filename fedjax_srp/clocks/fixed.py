"""Times drawn once for the whole run."""

from typing import NamedTuple

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Clock, Key
from fedjax_srp.clocks.distributions import Cost, Distribution, Work, draw
from fedjax_srp.parts.part import part


class FixedState(NamedTuple):
    """The times of all rounds."""

    times: Array  # (num_clients,) float, work * T_i + communication
    communication: Array  # () float


@part
class Fixed(Clock):
    """Every client keeps its time T_i, which is drawn once and known beforehand.

    SRPFL, section 5, "fixed speeds": `Fixed(Exponential(1.0))`. FLANP charges tau * T_i for tau
    local steps: `work=tau`.

    Args:
        distribution: of T_i, in time units.
        work: units of local work in a round; multiplies the times.
        ordered: number clients by speed: 0 is the fastest, the last the slowest. Data are assigned
            by client id, so this ties data to speed, as for `reserved_classes` of slow clients.
        communication: added once to every client's time, whatever its work, for policies with
            overlapping rounds, such as `Buffered`. Otherwise leave it out: `history.elapsed` adds
            any cost later.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> clock = srp.clocks.Fixed(srp.clocks.Exponential(1.0), work=5)
        >>> state = clock.init(jax.random.key(0), 10)
        >>> times, state = clock.sample(jax.random.key(1), state, jnp.zeros(()))
        >>> bool((times.expected == times.realised).all())
        True
    """

    distribution: Distribution
    work: Work = 1.0
    ordered: bool = False
    communication: Cost = 0.0

    @override
    def init(self, key: Key, num_clients: int) -> FixedState:
        times = draw(key, self.distribution, num_clients)
        if self.ordered:
            times = jnp.sort(times)
        times = jnp.asarray(self.work, dtype=float) * times
        communication = jnp.asarray(self.communication, dtype=float)
        return FixedState(times + communication, communication)

    @override
    def sample(
        self, key: Key, state: FixedState, now: Array
    ) -> tuple[ClientTimes, FixedState]:
        return ClientTimes(state.times, state.times, state.communication), state
