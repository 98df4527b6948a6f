"""Clients of similar speed."""

from typing import Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
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
    draw,
    request,
    restricted_to,
    speed_tiers,
)
from fedjax_srp.parts.part import Count, part


@part
class Tiered(ParticipationPolicy):
    """In every round `k` clients of one tier take part; the clients of a tier have similar speeds.

    TiFL (Chai et al., 2020): clients are sorted by their expected times into `tiers` of equal size
    (the last one takes the remainder), one tier is drawn, and then `k` of its clients, uniformly
    without replacement, so that no client waits for a slower tier. TiFL's adaptive choice prefers
    tiers of low test accuracy and limits each tier by credits. Policies see no test data here:
    `by="loss"` draws tiers in proportion to the mean of their clients' last training losses,
    without credits; all are equally likely until each tier has reported.

    The metric `tier` is the tier of the round, 0 the fastest.

    Args:
        k: clients per round.
        tiers: number of tiers.
        by: "uniform" draws all tiers equally often, "loss" prefers tiers with high losses.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Tiered(2, tiers=2)
        >>> times = jnp.array([9.0, 1.0, 8.0, 2.0])
        >>> state = policy.init(jax.random.key(1), 4)
        >>> cohort, _ = policy.select(jax.random.key(0), state, srp.ClientTimes(times, times))
        >>> cohort.client_ids.tolist() in ([1, 3], [2, 0])
        True
    """

    k: Count = 10
    tiers: Count = 5
    by: Literal["uniform", "loss"] = "uniform"

    @property
    @override
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (TRAINING_LOSS,) if self.by == "loss" else ()

    @override
    def init(self, key: Key, num_clients: int) -> tuple[Array, Array]:
        """(num_clients,) float, each client's last loss, nan at first; () int32, the tier."""
        check_at_most("tiered: tiers", self.tiers, "num_clients", num_clients)
        check_at_most(
            "tiered: k", self.k, "num_clients // tiers", num_clients // self.tiers
        )
        return jnp.full(num_clients, jnp.nan), jnp.int32(0)

    @override
    def select(
        self, key: Key, state: tuple[Array, Array], times: ClientTimes
    ) -> tuple[Cohort, tuple[Array, Array]]:
        losses = state[0]
        tier_of = speed_tiers(times.expected, self.tiers)
        # P(tier) is the mean loss of its clients over the sum of these means
        seen = jnp.isfinite(losses)
        count = jnp.zeros(self.tiers).at[tier_of].add(seen.astype(float))
        total = jnp.zeros(self.tiers).at[tier_of].add(jnp.where(seen, losses, 0))
        mean = total / jnp.maximum(count, 1)
        weight = jnp.where(jnp.all((count > 0) & (mean > 0)), mean, 1.0)
        if times.available is not None:
            can_work = jnp.zeros(self.tiers, bool).at[tier_of].max(times.available)
            weight = weight * can_work.astype(float)
        key_tier, key_clients = jax.random.split(key)
        tier = jax.random.categorical(key_tier, jnp.log(weight)).astype(jnp.int32)
        wanted = available_among(times, tier_of == tier)
        client_ids = draw(key_clients, wanted.shape[0], self.k, wanted)
        return request(restricted_to(times, wanted), client_ids), (losses, tier)

    @override
    def update(self, state: tuple[Array, Array], info: RoundInfo) -> tuple[Array, Array]:
        losses, tier = state
        if self.by == "loss":
            reported = info.reports[TRAINING_LOSS]
            losses = jnp.where(jnp.isnan(reported), losses, reported)
        return losses, tier

    @override
    def metrics(self, state: tuple[Array, Array]) -> dict[str, Array]:
        return {"tier": state[1]}
