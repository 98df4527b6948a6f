"""Times drawn afresh every round."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jax.typing import ArrayLike

from fedjax_srp.base import Array, ClientTimes, Clock, Key, PyTree
from fedjax_srp.clocks._checks import check_communication, check_work
from fedjax_srp.clocks.distributions import Distribution, as_floats
from fedjax_srp.parts import interned
from fedjax_srp.record import recorded


class DynamicState(NamedTuple):
    """What stays the same over the rounds."""

    parameters: PyTree  # of the distribution, (num_clients,) arrays
    work: Array  # () float
    communication: Array  # () float, time units


@recorded
def dynamic(
    distribution: Distribution, work: ArrayLike = 1.0, ordered: bool = False, communication: ArrayLike = 0.0
) -> Clock:
    """Every client has its own distribution, drawn once, and draws T_i from it in every round.

    SRPFL, section 5, "random speeds": `dynamic(exponential(uniform(1 / N, 1)))` for N clients: T_i ~ Exp(lambda_i) in
    each round, lambda_i ~ U[1/N, 1] once. (The authors' code draws means from U[1, 100] instead.)

    Args:
        distribution: of T_i, in time units.
        work: units of local work in a round; multiplies the times.
        ordered: number clients by their expected time: 0 is the fastest, the last the slowest. Which data a client has
            goes by its number, so this ties data to speed, as for classes that only slow clients have
            (`reserved_classes`).
        communication: added to every client's time, once however many units of work it does: for participation whose
            rounds overlap, such as `buffered`. For rounds that wait, leave it out: `history.elapsed` adds any cost
            afterwards.

    Returns:
        The clock; expected times are the means of the clients' distributions.

    Raises:
        ValueError: for what is no distribution, work or a communication that is negative or not finite, or `ordered`
            that is no bool.

    Example:
        >>> import jax
        >>> from fedjax_srp import clocks
        >>> clock = clocks.dynamic(clocks.exponential(clocks.uniform(1 / 100, 1)))
        >>> state = clock.init(jax.random.key(0), 100)
        >>> times, state = clock.sample(jax.random.key(1), state)
        >>> bool((times.expected == 1 / state.parameters).all())
        True
    """
    check_work("dynamic", work)
    check_communication("dynamic", communication)

    init = Partial(_init, distribution, as_floats(work), ordered, as_floats(communication))
    return Clock("dynamic", init, _sampling(distribution.mean, distribution.sample))


def _init(
    distribution: Distribution, work: Array, ordered: bool, communication: Array, key: Key, num_clients: int
) -> DynamicState:
    parameters = distribution.parameters(key, num_clients)
    if ordered:
        by_speed = jnp.argsort(distribution.mean(parameters))  # stable: equal clients stay in place
        parameters = jax.tree.map(lambda values: values[by_speed], parameters)
    return DynamicState(parameters, jnp.asarray(work, dtype=float), jnp.asarray(communication, dtype=float))


@interned
def _sampling(
    mean: Callable[[PyTree], Array], draw: Callable[[Key, PyTree], Array]
) -> Callable[[Key, DynamicState], tuple[ClientTimes, DynamicState]]:
    def sample(key: Key, state: DynamicState) -> tuple[ClientTimes, DynamicState]:
        expected = state.work * mean(state.parameters) + state.communication
        realised = state.work * draw(key, state.parameters) + state.communication
        return ClientTimes(expected, realised, state.communication), state

    return sample
