"""Rounds with a deadline or a quorum."""

from typing import Annotated

from typing_extensions import override

from fedjax_srp.base import (
    Array,
    ClientTimes,
    Cohort,
    Key,
    ParticipationPolicy,
    PolicyState,
    RoundInfo,
)
from fedjax_srp.participation.cohorts import closed_after
from fedjax_srp.participation.full import Full
from fedjax_srp.parts.part import Above, Count, part


@part
class Deadline(ParticipationPolicy):
    """Rounds of another policy that end at a deadline or at a quorum; later reports are discarded.

    A round ends at `limit`, at the `quorum`-th report, or when the other policy ends it, whichever
    is first; if no client is done at `limit`, it ends at the first report. `Deadline(limit=60.0,
    quorum=100, policy=Uniform(130))` is the reporting window of production systems (Bonawitz et
    al., 2019, section 2.2). Clients that are late stop then, and can be selected in the next round.

    The metric `wasted_time` is the total time, in time units, that selected clients work which are
    too late: until the round ends.

    Args:
        limit: the deadline, in time units; None: no deadline.
        quorum: number of reports that ends the round; None: all.
        policy: selects the clients, as an object or a text such as "oort"; its stages,
            reports and metrics are the same as without a deadline.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Deadline(limit=2.5)
        >>> times = jnp.array([3.0, 1.0, 2.0])
        >>> state = policy.init(jax.random.key(0), 3)
        >>> cohort, _ = policy.select(jax.random.key(1), state, srp.ClientTimes(times, times))
        >>> cohort.client_ids[: cohort.size].tolist(), float(cohort.duration), int(cohort.asked)
        ([1, 2], 2.5, 3)
    """

    limit: Annotated[float, Above(0)] | None = None
    quorum: Count | None = None
    policy: ParticipationPolicy = Full()

    def __post_init__(self) -> None:
        if self.limit is None and self.quorum is None:
            raise ValueError(
                "deadline: limit=None and quorum=None end no round; give one of them, "
                "e.g. limit=60.0"
            )
        if self.policy.asynchronous:
            raise ValueError(
                f"deadline: policy={self.policy.name!r}: its rounds overlap; "
                "give one whose rounds wait"
            )

    @property
    @override
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.needs

    @property
    @override
    def needs_global_gradient(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.needs_global_gradient

    @property
    def max_work(self) -> int:
        """The most units of work of a client."""
        return self.policy.max_work

    @override
    def init(self, key: Key, num_clients: int) -> PolicyState:
        return self.policy.init(key, num_clients)

    @override
    def select(
        self, key: Key, state: PolicyState, times: ClientTimes
    ) -> tuple[Cohort, PolicyState]:
        cohort, state = self.policy.select(key, state, times)
        return closed_after(cohort, times, self.quorum, self.limit), state

    @override
    def update(self, state: PolicyState, info: RoundInfo) -> PolicyState:
        return self.policy.update(state, info)

    @override
    def metrics(self, state: PolicyState) -> dict[str, Array]:
        return dict(self.policy.metrics(state))
