"""SRPFL's participation: the fastest clients, doubled in every stage."""

from jax.core import Tracer
from typing_extensions import override

from fedjax_srp.base import Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import check_at_most, stage_sizes
from fedjax_srp.participation.staged import Staged, StagedState
from fedjax_srp.parts.part import part


@part
class Doubling(Staged):
    """The n fastest of a pool; n = `initial` at first, and doubles with each stage.

    SRPFL, Algorithm 1: stage r has n_r = min(N, n0 * 2**r) participants, r = 0, ...,
    ceil(log2(N / n0)), with N the size of the pool. Pools are redrawn in every round or
    in every stage (Remark 3.1). Ranking by realised times needs no oracle: the server
    asks the pool and continues when n answers are in (Remark 3.2).

    Runs that differ in `initial` or `rounds_per_stage` (leaves) share programs, also with
    `Full` and `Uniform`.

    Args:
        initial: n0, participants of the first stage; 10 in the code of SRPFL's
            experiments. With initial = pool there is one stage.
        rounds_per_stage: tau_r; an integer >= 1, the rounds of every stage but the last,
            10 in that code; or several integers >= 0, entry r being the rounds of stage
            r, as theory gives them. Stages of 0 rounds and unlisted stages are skipped.
            After the listed rounds the policy stays in the last stage, the first with n0
            * 2**r >= N, for which an entry has no effect.
        pool: N, clients drawn uniformly without replacement; None for all clients,
            without a draw.
        redraw: draw the pool in every "round", or once per "stage".
        by: the times that rank the pool.
        growth: factor of n from stage to stage; 2 in the paper.

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

    def __post_init__(self) -> None:
        if self.pool is not None:
            check_at_most("doubling: initial", self.initial, "pool", self.pool)

    @override
    def init(self, key: Key, num_clients: int) -> StagedState:
        if self.pool is not None:
            check_at_most("doubling: pool", self.pool, "num_clients", num_clients)
        check_at_most("doubling: initial", self.initial, "num_clients", num_clients)
        is_known = not isinstance(self.initial, Tracer)
        if is_known and isinstance(self.rounds_per_stage, tuple):
            sizes = stage_sizes(self.initial, self.pool or num_clients, self.growth)
            check_at_most(
                "doubling: length of rounds_per_stage",
                len(self.rounds_per_stage),
                "number of stages",
                len(sizes),
            )
        return super().init(key, num_clients)

    @override
    def runs_as(self, num_clients: int) -> ParticipationPolicy:
        if type(self) is not Doubling:  # a subclass may have other cohorts
            return self
        return Staged(
            self.initial,
            self.rounds_per_stage,
            self.pool,
            self.redraw,
            self.by,
            self.growth,
        )
