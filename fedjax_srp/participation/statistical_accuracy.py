"""FLANP's participation: the fastest clients, doubled at statistical accuracy."""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
    STAGE_COMPLETED,
    Array,
    ClientTimes,
    Cohort,
    Key,
    ParticipationPolicy,
    RoundInfo,
)
from fedjax_srp.participation.cohorts import (
    Growth,
    check_at_most,
    closed_after,
    fastest_available,
    stage_sizes,
    with_partial_work,
)
from fedjax_srp.parts.part import Above, Count, Share, Static, part

Constant = Static[Annotated[float, Above(0), "give a number, e.g. 1.0"]]


class StatisticalAccuracyState(NamedTuple):
    """The stage, and the criterion in the last round."""

    # () int32: stage of the next round; one more than the last stage after its end
    stage: Array
    # () float: threshold for one client, or for the first stage; nan until it is known
    scale: Array
    threshold: Array  # () float: of the norm of the gradient in the last round
    is_met: Array  # () bool: the norm was at most the threshold


@part
class StatisticalAccuracy(ParticipationPolicy):
    """The n fastest clients, until they reach statistical accuracy; then n doubles.

    FLANP, Algorithm 2: a stage of n clients ends with the first round after which the
    squared norm of grad L_n(w) is at most 2 mu c / (n s), where L_n is the mean loss of
    these clients and c / (n s) its statistical accuracy. Then n <- min(2n, N), and w is
    kept, a warm start. With fixed speeds cohorts are nested. After the last stage the
    paper's run ends; here it continues with all clients. A stage whose criterion never
    holds lasts for the rest of the run. `history.stages()` and the summary have each
    stage's first round, and if its criterion held.

    Without the three constants it follows the heuristic of section 5.4: a threshold for
    the norm itself starts at a share of the norm after the first round, and is halved
    with each doubling. (The paper tunes the start and gives no number; with the constants
    the threshold shrinks by 1 / sqrt(2).)

    The criterion is checked once per round, after the update, as in section 3.2: so a
    stage has at least one round (the loop in Algorithm 2 would allow none), and
    participants compute and send one more gradient, over all their examples. The metrics
    have the norm, `global_grad_norm`, its threshold, `grad_norm_threshold`, and
    `stage_completed`.

    Args:
        initial: n0, participants of the first stage.
        strong_convexity: mu, of the clients' losses. The scale sqrt(2 mu c / s) is
            computed before a program runs, in double precision, so another value of the
            three constants compiles anew.
        accuracy_constant: c, with c / (n s) the statistical accuracy of n s samples.
        samples_per_client: s.
        first_threshold: share of the first norm at which the first stage ends; for the
            heuristic, to be tuned. With 1 the first stage is one round, so the first
            clients alone never train for the whole run. A smaller share keeps stages
            longer, which is faster where the norm gets that small (0.25 in FLANP's figure
            9) and never grows where it does not (0.5 in figure 4): look at
            `history.stages()`.
        shrinkage: factor of the threshold from one stage to the next; for the heuristic.
            With 1 / sqrt(2) more clients take part sooner.
        by: the times that rank the clients. FLANP sorts them once, by known speeds; by
            realised times the cohort may change from round to round.
        max_work: units of local work in a round, as in `PartialWork`.
        work_by_stage: units of local work in a round of stage 0, 1, ..., the last number
            for all later stages: tau of Algorithm 2, if a unit is one step. All
            participants do all of them; `max_work` is the largest. None: `max_work`.
        on_time: share of the cohort that does all of them; the others do what fits, as in
            `PartialWork`.
        growth: factor of n from stage to stage; 2 in the paper.

    Example:
        >>> import fedjax_srp as srp
        >>> policy = srp.participation.StatisticalAccuracy(5, strong_convexity=0.1, accuracy_constant=2.0,
        ...                                                samples_per_client=100)
        >>> policy.needs_global_gradient
        True
    """

    name: ClassVar[str] = "statistical_accuracy"
    needs_global_gradient: ClassVar[bool] = True
    initial: Count = 10
    strong_convexity: Constant | None = None
    accuracy_constant: Constant | None = None
    samples_per_client: Constant | None = None
    first_threshold: Share = 1.0
    shrinkage: Share = 0.5
    by: Literal["realised", "expected"] = "expected"
    max_work: Count = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    on_time: Static[Share] = 1.0
    growth: Growth = 2
    work_by_stage: tuple[Count, ...] | None = None

    def __post_init__(self) -> None:
        work = self.work_by_stage
        if work is not None and (not work or self.max_work != max(work)):
            largest = f"max_work={max(work, default=1)}"
            raise ValueError(
                f"statistical_accuracy: work_by_stage={work}: its largest must be "
                f"max_work={self.max_work}; give at least one, and {largest}"
            )
        if work is not None and self.on_time != 1:
            raise ValueError(
                f"statistical_accuracy: work_by_stage={work}: all participants do all of "
                f"it, so on_time={self.on_time:g} has no effect; leave one out"
            )
        names = ("strong_convexity", "accuracy_constant", "samples_per_client")
        missing = [name for name in names if getattr(self, name) is None]
        if len(missing) not in (0, 3):
            raise ValueError(
                f"statistical_accuracy: {missing[0]}=None: the criterion 2 mu c / (n s) "
                f"needs all of {', '.join(names)}; give none of them for the heuristic"
            )

    @override
    def init(self, key: Key, num_clients: int) -> StatisticalAccuracyState:
        check_at_most(
            "statistical_accuracy: initial", self.initial, "num_clients", num_clients
        )
        mu = self.strong_convexity
        c = self.accuracy_constant
        s = self.samples_per_client
        scale = math.nan
        if mu and c and s:
            # sqrt(2 mu c / s)
            scale = math.sqrt(2 * mu * c / s)
        return StatisticalAccuracyState(
            stage=jnp.int32(0),
            scale=jnp.asarray(scale, dtype=float),
            threshold=jnp.asarray(math.nan, dtype=float),
            is_met=jnp.asarray(False),
        )

    @override
    def select(
        self, key: Key, state: StatisticalAccuracyState, times: ClientTimes
    ) -> tuple[Cohort, StatisticalAccuracyState]:
        num_clients = times.realised.shape[0]
        sizes = stage_sizes(self.initial, num_clients, self.growth)
        stage = jnp.minimum(state.stage, len(sizes) - 1)
        all_clients = jnp.arange(num_clients, dtype=jnp.int32)
        size = jnp.asarray(sizes, jnp.int32)[stage]
        cohort = fastest_available(times, all_clients, size, stage, self.by)
        if self.work_by_stage is None:
            return with_partial_work(cohort, times, self.max_work, self.on_time), state
        of_stages = jnp.asarray(self.work_by_stage, jnp.int32)
        units = of_stages[jnp.minimum(stage, len(self.work_by_stage) - 1)]
        cohort = cohort._replace(work=jnp.full_like(cohort.work, units))
        if times.available is not None:
            cohort = closed_after(cohort, times)
        return cohort, state

    @override
    def update(
        self, state: StatisticalAccuracyState, info: RoundInfo
    ) -> StatisticalAccuracyState:
        norm = info.global_grad_norm
        scale = state.scale
        if self.strong_convexity is not None:
            # sqrt(2 mu c / (n s))
            threshold = scale / jnp.sqrt(info.cohort_size.astype(float))
        else:
            # After the first round: a share of its norm.
            is_first = jnp.isnan(scale) & jnp.isfinite(norm)
            scale = jnp.where(is_first, self.first_threshold * norm, scale)
            threshold = scale * self.shrinkage ** info.stage.astype(float)
        is_met = norm <= threshold  # False if one of them is nan
        stage = info.stage + is_met.astype(jnp.int32)
        return StatisticalAccuracyState(stage, scale, threshold, is_met)

    @override
    def metrics(self, state: StatisticalAccuracyState) -> dict[str, Array]:
        return {"grad_norm_threshold": state.threshold, STAGE_COMPLETED: state.is_met}
