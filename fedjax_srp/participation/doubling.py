"""SRPFL's participation: the fastest clients, doubled in every stage."""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedjax_srp.base import (
    Array,
    ClientTimes,
    Cohort,
    Key,
    ParticipationPolicy,
    RoundInfo,
)
from fedjax_srp.participation.cohorts import (
    check_at_most,
    draw_pool,
    request,
    stage_sizes,
    stages_ended,
)
from fedjax_srp.parts.part import AtLeast, Count, Leaf, part


class DoublingState(NamedTuple):
    """The next round, and the key of the stages' pools."""

    round: Array  # () int32, the next round
    key: Key


@part
class Doubling(ParticipationPolicy):
    """The n fastest of a pool take part; n = `initial` at first, and doubles with each stage up to the whole pool.

    SRPFL, Algorithm 1: stage r has n_r = min(N, n0 * 2**r) participants, r = 0, ..., ceil(log2(N / n0)), with N the
    size of the pool. Pools are redrawn in every round or in every stage (Remark 3.1). Ranking by realised times needs
    no oracle: the server asks the pool and continues when n answers are in (Remark 3.2).

    Runs that differ in `initial` or `rounds_per_stage` (leaves) share programs, also with `Full` and `Uniform`.

    Args:
        initial: n0, participants of the first stage; 10 in the code of SRPFL's experiments. With initial = pool there
            is one stage.
        rounds_per_stage: tau_r; an integer >= 1, the rounds of every stage but the last, 10 in that code; or several
            integers >= 0, entry r being the rounds of stage r, as theory gives them. Stages of 0 rounds and unlisted
            stages are skipped. After the listed rounds the policy stays in the last stage, the first with n0 * 2**r >=
            N, for which an entry has no effect.
        pool: N, clients drawn uniformly without replacement; None for all clients, without a draw.
        redraw: draw the pool in every "round", or once per "stage".
        by: the times that rank the pool.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Doubling(initial=10, rounds_per_stage=10)
        >>> times = jnp.arange(100.0)
        >>> state = policy.init(jax.random.key(0), 100)
        >>> sizes = []
        >>> for first_round in (0, 10, 20, 30, 40):
        ...     state = state._replace(round=jnp.int32(first_round))
        ...     cohort, state = policy.select(jax.random.key(1), state, srp.ClientTimes(times, times))
        ...     sizes.append(int(cohort.size))
        >>> sizes
        [10, 20, 40, 80, 100]
    """

    initial: Leaf[Count] = 10
    rounds_per_stage: Leaf[Count | tuple[Annotated[int, AtLeast(0)], ...]] = 10
    pool: Count | None = None
    redraw: Literal["round", "stage"] = "round"
    by: Literal["realised", "expected"] = "realised"

    def __post_init__(self) -> None:
        if self.pool is not None:
            check_at_most("doubling: initial", self.initial, "pool", self.pool)

    def init(self, key: Key, num_clients: int) -> DoublingState:
        """The state before round 0, with the key of the pools."""
        if self.pool is not None:
            check_at_most("doubling: pool", self.pool, "num_clients", num_clients)
        check_at_most("doubling: initial", self.initial, "num_clients", num_clients)
        if isinstance(self.rounds_per_stage, tuple) and not isinstance(
            self.initial, Tracer
        ):
            listed, stages = (
                len(self.rounds_per_stage),
                len(stage_sizes(self.initial, self.pool or num_clients)),
            )
            check_at_most(
                "doubling: length of rounds_per_stage", listed, "number of stages", stages
            )
        return DoublingState(jnp.zeros((), jnp.int32), key)

    def select(
        self, key: Key, state: DoublingState, times: ClientTimes
    ) -> tuple[Cohort, DoublingState]:
        """The n fastest clients of the pool, with n of the stage."""
        num_clients = times.realised.shape[0]
        pool, initial = self.pool or num_clients, jnp.asarray(self.initial, jnp.int32)
        # n0 * 2**r < N, as n0 < ceil(N / 2**r), which does not overflow
        smaller = initial < jnp.asarray(
            [-(-pool // 2**r) for r in range(pool.bit_length())], jnp.int32
        )
        last = jnp.sum(smaller, dtype=jnp.int32)
        stage = jnp.minimum(stages_ended(state.round, self.rounds_per_stage), last)
        key_pool = jax.random.fold_in(state.key, stage) if self.redraw == "stage" else key
        drawn = draw_pool(key_pool, num_clients, pool, times.available)
        # n = min(N, n0 * 2**r)
        return request(
            times, drawn, jnp.minimum(initial << stage, pool), stage, self.by
        ), state

    def update(self, state: DoublingState, info: RoundInfo) -> DoublingState:
        """Advance the round."""
        return state._replace(round=info.round + 1)
