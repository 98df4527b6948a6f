"""Times drawn in every round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Clock, Key, PyTree
from fedjax_srp.clocks.distributions import Cost, Distribution, Work
from fedjax_srp.parts.part import part


class DynamicState(NamedTuple):
    """The constants of a run."""

    parameters: PyTree  # of the distribution, (num_clients,) arrays
    work: Array  # () float
    communication: Array  # () float, time units


@part
class Dynamic(Clock):
    """Every client has its own distribution, and draws T_i from it in every round.

    SRPFL, section 5, "random speeds": `Dynamic(Exponential(Uniform(1 / N, 1)))` for N clients: T_i
    ~ Exp(lambda_i) in each round, lambda_i ~ U[1/N, 1] once. (The authors' code draws means from
    U[1, 100] instead.) Expected times are the means of the clients' distributions.

    Args:
        distribution: of T_i, in time units.
        work: units of local work in a round; multiplies the times.
        ordered: number clients by their expected time: 0 is the fastest, the last the slowest. Data
            are assigned by client id, so this ties data to speed, as for `reserved_classes` of slow
            clients.
        communication: added once to every client's time, whatever its work, for policies with
            overlapping rounds, such as `Buffered`. Otherwise leave it out: `history.elapsed` adds
            any cost later.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> clock = srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(1 / 100, 1)))
        >>> state = clock.init(jax.random.key(0), 100)
        >>> times, state = clock.sample(jax.random.key(1), state, jnp.zeros(()))
        >>> bool((times.expected == 1 / state.parameters).all())
        True
    """

    distribution: Distribution
    work: Work = 1.0
    ordered: bool = False
    communication: Cost = 0.0

    @override
    def init(self, key: Key, num_clients: int) -> DynamicState:
        parameters = self.distribution.parameters(key, num_clients)
        if self.ordered:
            # stable: equal clients stay in place
            by_speed = jnp.argsort(self.distribution.mean(parameters))
            parameters = jax.tree.map(lambda values: values[by_speed], parameters)
        return DynamicState(
            parameters=parameters,
            work=jnp.asarray(self.work, dtype=float),
            communication=jnp.asarray(self.communication, dtype=float),
        )

    @override
    def sample(
        self, key: Key, state: DynamicState, now: Array
    ) -> tuple[ClientTimes, DynamicState]:
        expected = (
            state.work * self.distribution.mean(state.parameters) + state.communication
        )
        realised = (
            state.work * self.distribution.sample(key, state.parameters)
            + state.communication
        )
        return ClientTimes(expected, realised, state.communication), state
