"""Cohorts that grow when a rule says so, and the rules."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
    CLIENT_GRADIENT_NORM,
    STAGE_COMPLETED,
    TRAINING_LOSS,
    Array,
    ClientTimes,
    Cohort,
    Key,
    ParticipationPolicy,
    PyTree,
    RoundInfo,
)
from fedjax_srp.participation.cohorts import Growth, check_at_most
from fedjax_srp.participation.staged import Staged, StagedState
from fedjax_srp.parts.part import Above, AtLeast, Count, Share, part, undefined


class Verdict(NamedTuple):
    """The judgement of a `GrowthRule` on a finished round."""

    is_over: Array  # () bool: the stage ends
    measure: Array  # () float: the number that decided, for the history
    state: PyTree  # of the rule


@part
class GrowthRule:
    """A rule that ends the stages of `Growing`.

    A subclass is a part whose fields are its numbers; it defines `judge`, and `init` if
    it has a state, which keeps its structure.

    Attributes:
        needs: reports of the participants, as for a `ParticipationPolicy`.
        needs_global_gradient: as for a `ParticipationPolicy`.
        least_clients: participants that the rule compares.
    """

    remedy: ClassVar[str] = (
        "give e.g. srp.participation.NormTest(), or another rule of srp.participation"
    )
    needs: ClassVar[tuple[str, ...]] = ()
    needs_global_gradient: ClassVar[bool] = False
    least_clients: ClassVar[int] = 1

    def init(self) -> PyTree:
        """The rule's state before the first round."""
        return ()

    def judge(self, state: PyTree, info: RoundInfo, growth: int) -> Verdict:
        """Judge a finished round; the next stage has `growth` times its clients."""
        undefined(self.judge)


class Gradients(NamedTuple):
    """Gradients of n participants at the new model, as a rule sees them."""

    number: Array  # () float: n
    mean_square: Array  # () float: of the norms |g_i|
    square_of_mean: Array  # () float: |g|^2, with g the mean of the g_i
    variance: Array  # () float: sum_i |g_i - g|^2 / (n - 1); nan for one participant


def gradients_of(info: RoundInfo) -> Gradients:
    """Summarize the participants' gradients, of equal weights."""
    norms = info.reports[CLIENT_GRADIENT_NORM]
    square = jnp.square(info.global_grad_norm)
    number = info.cohort_size.astype(float)
    mean_square = jnp.nanmean(jnp.square(norms))
    spread = mean_square - square
    variance = jnp.where(number > 1, spread * number / (number - 1), jnp.nan)
    return Gradients(number, mean_square, square, variance)


@part
class _GradientRule(GrowthRule):
    """A rule that compares the participants' gradients at the new model."""

    needs: ClassVar[tuple[str, ...]] = (CLIENT_GRADIENT_NORM,)
    needs_global_gradient: ClassVar[bool] = True
    least_clients: ClassVar[int] = 2


@part
class NormTest(_GradientRule):
    """The norm test: n grows when the clients' gradients differ too much for their mean.

    Byrd, Chin, Nocedal and Wu (2012, section 3), whose samples are clients here; AdAdaGrad
    (Lau, Liu and Kolar, 2024) takes the test for batches. The mean g of n gradients is
    near the one of all clients if its variance is small beside it,

        `sum_i |g_i - g|^2 / (n - 1) / n <= theta^2 |g|^2`.

    A round that fails the test ends the stage. The paper then sets n so that the test
    would hold, here n grows by the policy's factor. The measure is the left side over
    `|g|^2`.

    Args:
        theta: larger values keep cohorts small for longer; 0.5 in the paper.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.participation.NormTest(0.5).needs_global_gradient
        True
    """

    theta: Annotated[float, Above(0)] = 0.5

    @override
    def judge(self, state: PyTree, info: RoundInfo, growth: int) -> Verdict:
        gradients = gradients_of(info)
        noise = gradients.variance / gradients.number
        # Var / n > theta^2 |g|^2
        is_over = noise > self.theta**2 * gradients.square_of_mean
        return Verdict(is_over, noise / gradients.square_of_mean, state)


@part
class GradientDiversity(_GradientRule):
    """Gradient diversity: n grows when the clients' gradients are so different that more
    of them still speed up a step.

    Yin et al. (2018): with N terms, batches of up to delta B + 1 with

        `B = N sum_i |g_i|^2 / |sum_i g_i|^2 = (mean of |g_i|^2) / |g|^2`

    converge like single terms. DiveBatch (Chen et al., 2025) sets its batches by it. The
    terms are clients here, and B is estimated from the cohort: `|g|^2` of a few clients is
    too large by its variance, which is taken off. Where nothing is left, B is infinite.
    The stage ends after a round in which the next stage's clients are at most delta B +
    1. The measure is B.

    Args:
        delta: larger values grow sooner.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.participation.Growing(4, srp.participation.GradientDiversity(0.5)).initial
        4
    """

    delta: Annotated[float, Above(0)] = 1.0

    @override
    def judge(self, state: PyTree, info: RoundInfo, growth: int) -> Verdict:
        gradients = gradients_of(info)
        # E |g|^2 = |mean of all|^2 + Var / n
        square = gradients.square_of_mean - gradients.variance / gradients.number
        largest = gradients.mean_square / jnp.maximum(square, 0)
        next_size = growth * gradients.number
        # n' <= delta B + 1; nan of a single participant ends no stage
        return Verdict(next_size <= self.delta * largest + 1, largest, state)


class PlateauState(NamedTuple):
    """The best loss of the stage, and the rounds since."""

    best: Array  # () float
    rounds: Array  # () int32


@part
class LossPlateau(GrowthRule):
    """A plateau of the loss: n grows when the training loss no longer falls.

    The rule of PyTorch's ReduceLROnPlateau, with its numbers: the stage ends after more
    than `patience` rounds in a row whose mean loss, over the participants, is not below
    (1 - threshold) times the best of the stage. Rounds without a loss do not count. The
    measure is the mean loss.

    Args:
        patience: rounds without a better loss that a stage outlasts.
        threshold: relative improvement that counts.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.participation.LossPlateau(patience=3).needs
        ('training_loss',)
    """

    needs: ClassVar[tuple[str, ...]] = (TRAINING_LOSS,)

    patience: Annotated[int, AtLeast(0)] = 10
    threshold: Share = 1e-4

    @override
    def init(self) -> PlateauState:
        return PlateauState(jnp.asarray(jnp.inf, dtype=float), jnp.int32(0))

    @override
    def judge(self, state: PlateauState, info: RoundInfo, growth: int) -> Verdict:
        loss = jnp.nanmean(info.reports[TRAINING_LOSS])
        is_better = loss < state.best * (1 - self.threshold)
        best = jnp.where(is_better, loss, state.best)
        is_worse = loss >= state.best * (1 - self.threshold)
        rounds = jnp.where(is_better, 0, state.rounds + is_worse.astype(jnp.int32))
        is_over = is_worse & (rounds > self.patience)
        # the next stage has other clients, with other losses: any is better
        best = jnp.where(is_over, jnp.inf, best)
        return Verdict(is_over, loss, PlateauState(best, rounds))


class GrowingState(NamedTuple):
    """The stage, the rule's state, and its last verdict."""

    stage: Array  # () int32, of the next round; one more than the last after its end
    key: Key  # of the stages' pools
    rule: PyTree
    measure: Array  # () float; nan before the first round
    is_over: Array  # () bool: the last round ended its stage


@part
class Growing(ParticipationPolicy):
    """The n fastest of a pool; n = `initial` at first, and grows when a rule says so.

    `Doubling` grows after given rounds and `StatisticalAccuracy` by FLANP's criterion;
    the rules here look at gradients (`NormTest`, `GradientDiversity`) or at the loss
    (`LossPlateau`), and yours is a `GrowthRule`. After each round the rule decides if the
    next one has `growth` times the clients, at most all of the pool. Cohorts never
    shrink.

    A rule about gradients compares those of the participants at the new model, over all
    their examples, as FLANP's criterion does: participants compute and send one more
    gradient a round, and the algorithm must have a `gradient`. Clients weigh the same in
    these rules, so keep `weighting` of the training at "uniform".

    The metrics have `stage_completed`, and the number that decided, `growth_measure`.

    Args:
        initial: participants of the first stage; at least 2 for rules about gradients.
        criterion: when a stage ends, a rule or its text, `"LossPlateau(patience=3)"`.
        pool: clients drawn uniformly without replacement; None for all clients, without
            a draw.
        redraw: draw the pool in every "round", or once per "stage".
        by: the times that rank the pool.
        growth: factor of n from stage to stage.

    Example:
        >>> import fedjax_srp as srp
        >>> policy = srp.participation.Growing(5, srp.participation.LossPlateau(patience=3))
        >>> policy.needs
        ('training_loss',)
    """

    initial: Count = 10
    criterion: GrowthRule = NormTest()
    pool: Count | None = None
    redraw: Literal["round", "stage"] = "round"
    by: Literal["realised", "expected"] = "realised"
    growth: Growth = 2

    def __post_init__(self) -> None:
        least = self.criterion.least_clients
        if self.initial < least:
            raise ValueError(
                f"growing: initial={self.initial}: {type(self.criterion).__name__} compares "
                f"clients; give at least {least}"
            )
        if self.pool is not None:
            check_at_most("growing: initial", self.initial, "pool", self.pool)

    @property
    @override
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.criterion.needs

    @property
    @override
    def needs_global_gradient(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.criterion.needs_global_gradient

    @override
    def init(self, key: Key, num_clients: int) -> GrowingState:
        if self.pool is not None:
            check_at_most("growing: pool", self.pool, "num_clients", num_clients)
        check_at_most("growing: initial", self.initial, "num_clients", num_clients)
        return GrowingState(
            stage=jnp.int32(0),
            key=key,
            rule=self.criterion.init(),
            measure=jnp.asarray(jnp.nan, dtype=float),
            is_over=jnp.asarray(False),
        )

    @override
    def select(
        self, key: Key, state: GrowingState, times: ClientTimes
    ) -> tuple[Cohort, GrowingState]:
        # `Doubling` with stages of one round, which is in round r in stage r
        stages = Staged(self.initial, 1, self.pool, self.redraw, self.by, self.growth)
        cohort, _ = stages.select(key, StagedState(state.stage, state.key), times)
        return cohort, state

    @override
    def update(self, state: GrowingState, info: RoundInfo) -> GrowingState:
        verdict = self.criterion.judge(state.rule, info, self.growth)
        return GrowingState(
            stage=info.stage + verdict.is_over.astype(jnp.int32),
            key=state.key,
            rule=verdict.state,
            measure=verdict.measure,
            is_over=verdict.is_over,
        )

    @override
    def metrics(self, state: GrowingState) -> dict[str, Any]:
        return {"growth_measure": state.measure, STAGE_COMPLETED: state.is_over}
