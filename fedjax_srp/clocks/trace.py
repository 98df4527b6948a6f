"""Measured times."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Clock, Key
from fedjax_srp.clocks.distributions import Cost, Work, check_length
from fedjax_srp.parts.part import AtLeast, Axes, part

_SHAPE = "give an array of shape (num_clients,) or (rounds, num_clients)"


class TraceState(NamedTuple):
    """The trace and its next row."""

    times: Array  # (rounds, num_clients) float, times `work`, plus communication
    expected: Array  # (num_clients,) float, mean over the rounds of the trace
    round: Array  # () int32, the row of the next round
    communication: Array  # () float


@part
class Trace(Clock):
    """Recorded times, round after round, repeated from the end on.

    The trace is in the clock's state, so a run over S seeds keeps S copies; it is not
    compiled into the program. Expected times are each client's mean over the rounds of
    the trace.

    Args:
        times: (num_clients,), the same in every round, or (rounds, num_clients); in the
            time units of the trace, e.g. seconds.
        work: units of local work in a round; multiplies the times.
        communication: added once to every client's time, whatever its work, for policies
            with overlapping rounds, such as `Buffered`. Otherwise leave it out:
            `history.elapsed` adds any cost later.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> clock = srp.clocks.Trace([[1.0, 2.0], [3.0, 2.0]])
        >>> times, state = clock.sample(jax.random.key(1), clock.init(jax.random.key(0), 2), jnp.zeros(()))
        >>> times.expected.tolist(), times.realised.tolist()
        ([2.0, 2.0], [1.0, 2.0])
    """

    times: Annotated[float | jax.Array | np.ndarray, AtLeast(0), Axes(2), _SHAPE]
    work: Work = 1.0
    communication: Cost = 0.0

    def __post_init__(self) -> None:
        shape = np.shape(self.times)
        if 0 in shape or not shape:
            raise ValueError(
                f"times must have an entry per client, got shape {shape}; {_SHAPE}"
            )

    @override
    def init(self, key: Key, num_clients: int) -> TraceState:
        length = jnp.shape(self.times)[-1]
        check_length(
            "trace: a round of times", length, num_clients, "give one column per client"
        )
        work = jnp.asarray(self.work, dtype=float)
        rows = jnp.asarray(self.times, dtype=float).reshape(-1, num_clients)
        communication = jnp.asarray(self.communication, dtype=float)
        times = work * rows + communication
        return TraceState(
            times=times,
            expected=times.mean(axis=0),
            round=jnp.zeros((), jnp.int32),
            communication=communication,
        )

    @override
    def sample(
        self, key: Key, state: TraceState, now: Array
    ) -> tuple[ClientTimes, TraceState]:
        times = ClientTimes(state.expected, state.times[state.round], state.communication)
        next_round = (state.round + 1) % state.times.shape[0]
        return times, state._replace(round=next_round)
