"""FLANP's participation: the few fastest first, twice as many whenever their data have no more to give."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_srp._checks import check_choice, check_integer, check_numbers, check_share
from fedjax_srp.base import STAGE_COMPLETED, Array, ClientTimes, Cohort, Key, ParticipationPolicy, RoundInfo
from fedjax_srp.participation._stages import stage_cohort, stage_sizes
from fedjax_srp.participation.cohorts import check_at_most, number_on_time, times_by, with_partial_work
from fedjax_srp.parts import interned
from fedjax_srp.record import recorded


class StatisticalAccuracyState(NamedTuple):
    """Where the run is, and what the criterion said of the last round."""

    stage: Array  # () int32, of the round to come; one too many behind the last stage
    scale: Array  # () float, the threshold of one client, or of the first stage; nan until it is known
    threshold: Array  # () float, of the norm of the gradient in the last round
    is_met: Array  # () bool


@interned
@recorded
def statistical_accuracy(
    initial: int = 10,
    strong_convexity: float | None = None,
    accuracy_constant: float | None = None,
    samples_per_client: float | None = None,
    first_threshold: float = 0.5,
    shrinkage: float = 0.5,
    by: Literal["realised", "expected"] = "expected",
    max_work: int = 1,
    on_time: float = 1.0,
) -> ParticipationPolicy:
    """The n fastest clients take part until they reach the statistical accuracy of their data; then n doubles.

    FLANP, Algorithm 2: a stage of n clients ends with the first round after which the squared norm of grad L_n(w) is at
    most 2 mu c / (n s), where L_n is the mean loss of these clients and c / (n s) its statistical accuracy. Then
    n <- min(2n, N), and w stays, a warm start. Cohorts of fixed speeds are nested. Behind the last stage the paper's
    run ends; here it goes on with everybody. A stage whose criterion never holds lasts for the rest of the run.
    `history.stages()` says of each stage when it began and whether its criterion held, and so does the summary.

    Without the three constants, the heuristic of section 5.4: the norm itself has a threshold, at first a share of the
    norm after the first round, which is halved with each doubling. (The paper does not say where it starts; the rule
    above shrinks the norm by 1 / sqrt(2).)

    The criterion is checked once a round, behind the update, as section 3.2 says: so a stage has one round at least
    (the loop that Algorithm 2 prints would allow none), and participants compute and send one more gradient, over all
    their examples. The metrics of the history have the norm, `global_grad_norm`, its threshold, `grad_norm_threshold`,
    and `stage_completed`.

    Args:
        initial: n0, participants of the first stage.
        strong_convexity: mu, of the clients' losses.
        accuracy_constant: c, with c / (n s) the statistical accuracy of n s samples.
        samples_per_client: s.
        first_threshold: share of the first norm at which the first stage ends, of the heuristic.
        shrinkage: of the threshold, from a stage to the next, of the heuristic.
        by: the times that rank the clients. FLANP sorts them once, by what is known of them; by realised times the
            cohort changes from round to round where the clock does.
        max_work: units of local work in a round, as of `partial_work`.
        on_time: share of the cohort that does them all; the others do what fits, as in `partial_work`.

    Returns:
        The policy; its cohorts are ordered by the times that rank, ties by client id.

    Raises:
        ValueError: if initial or max_work is no integer or below 1, some of the constants are given and not all, one is
            not positive, a share is not in [0, 1], or `by` is unknown. In `init`: initial above num_clients.

    Example:
        >>> import fedjax_srp as srp
        >>> policy = srp.participation.statistical_accuracy(5, strong_convexity=0.1, accuracy_constant=2.0,
        ...                                                 samples_per_client=100)
        >>> policy.needs_global_gradient
        True
    """
    initial = check_integer("statistical_accuracy: initial", initial, 1)
    constants = {
        "strong_convexity": strong_convexity,
        "accuracy_constant": accuracy_constant,
        "samples_per_client": samples_per_client,
    }
    given = [value for value in constants.values() if value is not None]
    if len(given) not in (0, 3):
        missing = next(name for name, value in constants.items() if value is None)
        raise ValueError(
            f"statistical_accuracy: {missing}=None: the criterion 2 mu c / (n s) needs all of {', '.join(constants)}; "
            "give none of them for the heuristic"
        )
    for name, value in constants.items():
        if value is not None:
            check_numbers(f"statistical_accuracy: {name}", value, "give a number, e.g. 1.0", positive=True, max_ndim=0)
    for name, value in (("first_threshold", first_threshold), ("shrinkage", shrinkage), ("on_time", on_time)):
        check_share(f"statistical_accuracy: {name}", value)
    max_work = check_integer("statistical_accuracy: max_work", max_work, 1)
    check_choice("statistical_accuracy: by", by, ("realised", "expected"))
    if given:
        mu, c, s = given
        init, update = Partial(_init, initial, math.sqrt(2 * mu * c / s)), _update_by_size
    else:
        init, update = Partial(_init, initial, math.nan), Partial(_update_by_stage, first_threshold, shrinkage)

    select = _selecting(initial, by, max_work, on_time)
    return ParticipationPolicy(
        "statistical_accuracy", init, select, update, needs_global_gradient=True, metrics=_metrics
    )


@functools.cache  # the same function for equal arguments, so that policies that differ in thresholds share a program
def _selecting(initial: int, by: str, max_work: int, on_time: float) -> Callable[..., Any]:
    def select(
        key: Key, state: StatisticalAccuracyState, times: ClientTimes
    ) -> tuple[Cohort, StatisticalAccuracyState]:
        del key
        num_clients = times.realised.shape[0]
        sizes = stage_sizes(initial, num_clients)
        stage = jnp.minimum(state.stage, len(sizes) - 1)
        cohort = stage_cohort(times_by(times, by), jnp.arange(num_clients, dtype=jnp.int32), sizes, stage)
        waits_for = jnp.asarray([number_on_time(on_time, n) for n in sizes], jnp.int32)[stage]
        return with_partial_work(cohort, times, max_work, waits_for), state

    return select


def _init(initial: int, scale: float, key: Key, num_clients: int) -> StatisticalAccuracyState:
    del key
    check_at_most("statistical_accuracy: initial", initial, "num_clients", num_clients)
    unknown = jnp.asarray(math.nan, dtype=float)
    return StatisticalAccuracyState(jnp.int32(0), jnp.asarray(scale, dtype=float), unknown, jnp.asarray(False))


def _after(
    state: StatisticalAccuracyState, info: RoundInfo, scale: Array, threshold: Array
) -> StatisticalAccuracyState:
    is_met = info.global_grad_norm <= threshold  # never where one of them is nan
    return StatisticalAccuracyState(info.stage + is_met.astype(jnp.int32), scale, threshold, is_met)


def _update_by_size(state: StatisticalAccuracyState, info: RoundInfo) -> StatisticalAccuracyState:
    # sqrt(2 mu c / (n s))
    return _after(state, info, state.scale, state.scale / jnp.sqrt(info.cohort_size.astype(float)))


def _update_by_stage(
    first_threshold: float, shrinkage: float, state: StatisticalAccuracyState, info: RoundInfo
) -> StatisticalAccuracyState:
    norm = info.global_grad_norm
    scale = jnp.where(jnp.isnan(state.scale) & jnp.isfinite(norm), first_threshold * norm, state.scale)
    return _after(state, info, scale, scale * shrinkage ** info.stage.astype(float))


def _metrics(state: StatisticalAccuracyState) -> dict[str, Array]:
    return {"grad_norm_threshold": state.threshold, STAGE_COMPLETED: state.is_met}
