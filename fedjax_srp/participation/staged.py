"""The selection that `Full`, `Uniform` and `Doubling` have in common, as one policy."""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
    Array,
    ClientTimes,
    Cohort,
    Key,
    ParticipationPolicy,
    RoundInfo,
)
from fedjax_srp.participation.cohorts import (
    Growth,
    draw_pool,
    request,
    stage_sizes,
    stages_ended,
)
from fedjax_srp.parts.part import AtLeast, Count, Leaf, part


class StagedState(NamedTuple):
    """The next round, and the key of the stages' pools."""

    round: Array  # () int32, the next round
    key: Key


@part
class Staged(ParticipationPolicy):
    """The n fastest of a pool; n = `initial` at first, and grows with each stage.

    `Doubling` documents the fields. As `initial` and `rounds_per_stage` are leaves, all
    clients, a random sample and the stages of SRPFL are one compiled program: policies
    that name this one in `runs_as` share it.
    """

    initial: Leaf[Count] = 10
    rounds_per_stage: Leaf[Count | tuple[Annotated[int, AtLeast(0)], ...]] = 10
    pool: Count | None = None
    redraw: Literal["round", "stage"] = "round"
    by: Literal["realised", "expected"] = "realised"
    growth: Growth = 2

    @override
    def init(self, key: Key, num_clients: int) -> StagedState:
        return StagedState(jnp.zeros((), jnp.int32), key)

    @override
    def select(
        self, key: Key, state: StagedState, times: ClientTimes
    ) -> tuple[Cohort, StagedState]:
        num_clients = times.realised.shape[0]
        pool = self.pool or num_clients
        initial = jnp.asarray(self.initial, jnp.int32)
        # n0 * g**r < N, as n0 < ceil(N / g**r), which does not overflow
        factors = stage_sizes(1, pool, self.growth)
        bounds = [-(-pool // factor) for factor in factors]
        is_smaller = initial < jnp.asarray(bounds, jnp.int32)
        last = jnp.sum(is_smaller, dtype=jnp.int32)
        stage = jnp.minimum(stages_ended(state.round, self.rounds_per_stage), last)
        key_pool = key
        if self.redraw == "stage":
            key_pool = jax.random.fold_in(state.key, stage)
        sample = draw_pool(key_pool, num_clients, pool, times.available)
        # n = min(N, n0 * g**r)
        factor = jnp.asarray(factors, jnp.int32)[stage]
        size = jnp.where(is_smaller[stage], initial * factor, pool)
        return request(times, sample, size, stage, self.by), state

    @override
    def update(self, state: StagedState, info: RoundInfo) -> StagedState:
        return state._replace(round=info.round + 1)
