"""Measured times."""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Clock, Key
from fedjax_srp.clocks.distributions import Cost, Work, check_length
from fedjax_srp.clocks.named_clients import places_of
from fedjax_srp.parts.checks import ArgumentError, as_annotated
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

    @classmethod
    def by_name(
        cls,
        times: Mapping[str, float | Sequence[float]],
        client_names: Sequence[str] | None,
        work: float = 1.0,
        communication: float = 0.0,
    ) -> "Trace":
        """The trace of times by the clients' names.

        Args:
            times: name -> time of the client, or its times round after round, as many
                for each client; others are left out.
            client_names: of the data, `data.client_names`.
            work: as for `Trace`.
            communication: as for `Trace`.

        Raises:
            ValueError: the data have no names, a client has no times, or clients have
                different numbers of them.

        Example:
            >>> import fedjax_srp as srp
            >>> srp.clocks.Trace.by_name({"bob": [3.0, 1.0], "ann": [2.0, 2.0]}, ["ann", "bob"]).times.tolist()
            [[2.0, 3.0], [2.0, 1.0]]
        """
        as_annotated("times", times, Mapping, is_field=False)
        remedy = "give each client of data.client_names its times"
        places = places_of("times", times, list(times), client_names, remedy)
        measured = list(times.values())
        columns = [np.asarray(measured[place]) for place in places]
        lengths = {column.shape for column in columns}
        if len(lengths) > 1:
            problem = f"has clients with {len(lengths)} numbers of rounds"
            remedy = "give each client as many times"
            raise ArgumentError("times", times, problem, remedy)
        return cls(np.stack(columns, axis=-1), work, communication)

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
