"""Clients of high utility: those with high loss and many examples that are not too slow."""

from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
    NUM_EXAMPLES,
    TRAINING_LOSS,
    Array,
    ClientTimes,
    Cohort,
    Key,
    ParticipationPolicy,
    RoundInfo,
)
from fedjax_srp.participation.cohorts import (
    available_among,
    check_at_most,
    order_by,
    request,
    restricted_to,
)
from fedjax_srp.parts.part import Above, AtLeast, Count, Share, part


class OortState(NamedTuple):
    """Statistics of each client, and the pacer's."""

    # (num_clients,) float, U: statistical utility as last reported; 0 before
    utility: Array
    last: Array  # (num_clients,) int32, L: round of a client's last report, from 1; 0 for never
    duration: Array  # (num_clients,) float, D: the client's time in that round
    times: Array  # (num_clients,) float: the clients' times in the round in progress
    preferred: Array  # () float, T: the preferred duration of a round; 0 before the first
    gained: Array  # (2 * window,) float: utility of the participants of the last rounds, newest last
    round: Array  # () int32, R: the round in progress, from 1


@part
class Oort(ParticipationPolicy):
    """Clients are drawn by loss, number of examples and speed, some for the first time.

    Oort (Lai et al., 2021, Algorithm 1). The utility of a client that has taken part is

        (U + sqrt(0.1 log R / L)) (T / D)^alpha where D > T,   U = examples * loss,

    with R the round, L the one in which it last took part, D its time then, T the preferred
    duration. Clients are drawn in proportion to their utility among those above `cutoff` times the
    lowest that would be selected; a share of the cohort are clients that have never taken part,
    drawn in proportion to their expected speed, 1 / time. That share is `explore` at first and is
    multiplied by `decay` round by round down to `explore_least`. The pacer raises T by `step` when
    the participants of the last `window` rounds had less total utility than those of the `window`
    rounds before.

    Choices that differ from the paper, or that it leaves open: U has the mean loss of the last
    local training instead of the root mean square of the examples' losses; utilities are capped at
    the 95 % quantile of the available clients; the pacer compares at the end of every `window`
    rounds; T begins at one step. Clients are never excluded for frequent selection. A client that
    fails, or reports too late for a `Deadline`, has not taken part in the round.

    The metric `preferred_duration` is T.

    Args:
        k: K, clients per round.
        step: Delta, the pacer's increment of T, in time units.
        window: W, rounds that the pacer compares.
        straggler_penalty: alpha, of clients that are slower than T.
        explore: share of clients that have not taken part, in the first round.
        decay: factor of that share per round.
        explore_least: lower bound of that share.
        cutoff: c, share of the lowest utility that would be selected.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.participation.Oort(10, step=2.0).needs
        ('training_loss', 'num_examples')
    """

    needs: ClassVar[tuple[str, ...]] = (TRAINING_LOSS, NUM_EXAMPLES)
    k: Count = 10
    step: Annotated[float, Above(0)] = 1.0
    window: Count = 20
    straggler_penalty: Annotated[float, AtLeast(0)] = 2.0
    explore: Share = 0.9
    decay: Share = 0.98
    explore_least: Share = 0.2
    cutoff: Share = 0.95

    @override
    def init(self, key: Key, num_clients: int) -> OortState:
        check_at_most("oort: k", self.k, "num_clients", num_clients)
        unknown = jnp.zeros(num_clients)
        return OortState(
            utility=unknown,
            last=jnp.zeros(num_clients, jnp.int32),
            duration=unknown,
            times=unknown,
            preferred=jnp.zeros(()),
            gained=jnp.zeros(2 * self.window),
            round=jnp.int32(1),
        )

    @override
    def select(
        self, key: Key, state: OortState, times: ClientTimes
    ) -> tuple[Cohort, OortState]:
        """Draw known clients by utility and new ones by speed."""
        key_known, key_new = jax.random.split(key)
        known = available_among(times, state.last > 0)
        new = available_among(times, state.last == 0)
        round = state.round.astype(float)
        num_known = jnp.sum(known, dtype=jnp.int32)
        # epsilon_R <- max(explore decay^(R - 1), least); at most as many new clients as there are
        share = jnp.maximum(self.explore * self.decay ** (round - 1), self.explore_least)
        most_new = jnp.sum(new, dtype=jnp.int32)
        num_new = jnp.round(share * self.k).astype(jnp.int32)
        num_new = jnp.clip(num_new, self.k - num_known, most_new)
        num_new = jnp.minimum(num_new, self.k)
        # T <- T + Delta
        now = state.gained[self.window :].sum()
        before = state.gained[: self.window].sum()
        ends = (state.round > 2 * self.window) & ((state.round - 1) % self.window == 0)
        raised = (ends & (before > now)) | (state.preferred == 0)
        preferred = state.preferred + jnp.where(raised, self.step, 0.0)

        utility = self.utilities(state, preferred, known)
        # c * Util((1 - epsilon) K)
        num_old = self.k - num_new
        descending = jnp.sort(jnp.where(known, utility, -jnp.inf), descending=True)
        least = descending[jnp.maximum(num_old - 1, 0)]
        # 0 * inf is nan, which admits all
        admitted = known & ~(utility < self.cutoff * least)
        old = _drawn(key_known, jnp.where(admitted, utility, 0), admitted, num_old)
        picked = old | _drawn(key_new, 1 / times.expected, new, num_new)
        ids = jax.lax.top_k(picked.astype(float), self.k)[1].astype(jnp.int32)
        cohort = request(restricted_to(times, picked), ids)
        return cohort, state._replace(times=times.realised, preferred=preferred)

    def utilities(
        self, state: OortState, preferred: Array, known: Array | None = None
    ) -> Array:
        """Return Util of all clients, (num_clients,) float; ignore it for new clients.

        `known`, (num_clients,) bool, marks those whose quantile caps it; None: all that have taken part.
        """
        if known is None:
            known = state.last > 0
        most = jnp.nanquantile(jnp.where(known, state.utility, jnp.nan), 0.95)
        clipped = jnp.minimum(state.utility, jnp.where(jnp.isnan(most), jnp.inf, most))
        since = (
            0.1
            * jnp.log(state.round.astype(float))
            / jnp.maximum(state.last, 1).astype(float)
        )
        speed = preferred / jnp.maximum(state.duration, preferred)
        slow = jnp.where(state.duration > preferred, speed, 1.0)
        return (clipped + jnp.sqrt(since)) * slow**self.straggler_penalty

    @override
    def update(self, state: OortState, info: RoundInfo) -> OortState:
        """Statistics of the participants, utilities from their reports."""
        # not the late ones under a deadline
        took_part = ~jnp.isnan(info.reports[NUM_EXAMPLES])
        reported = info.reports[NUM_EXAMPLES] * info.reports[TRAINING_LOSS]
        return state._replace(
            utility=jnp.where(jnp.isnan(reported), state.utility, reported),
            last=jnp.where(took_part, state.round, state.last),
            duration=jnp.where(took_part, state.times, state.duration),
            gained=jnp.append(state.gained[1:], jnp.nansum(reported)),
            round=state.round + 1,
        )

    @override
    def metrics(self, state: OortState) -> dict[str, Array]:
        return {"preferred_duration": state.preferred}


def _drawn(key: Key, weight: Array, allowed: Array, size: Array) -> Array:
    """Draw `size` allowed clients one by one, in proportion to weights: (num_clients,) bool."""
    # The largest of log weight + Gumbel noise; clients of weight 0 come last.
    score = jnp.log(jnp.maximum(weight, 1e-30)) + jax.random.gumbel(key, weight.shape)
    score = jnp.where(allowed, score, -jnp.inf)
    ids = jnp.arange(score.shape[0], dtype=jnp.int32)
    best_first = order_by(-score, ids)
    is_drawn = jnp.zeros_like(allowed).at[best_first].set(ids < size)
    return allowed & is_drawn
