"""Clients of high loss."""

from typing import ClassVar

import jax.numpy as jnp
from jax import lax
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
from fedjax_srp.participation.cohorts import check_at_most, draw, request
from fedjax_srp.parts.part import Count, part


@part
class PowerOfChoice(ParticipationPolicy):
    """The `k` clients with the highest loss among random candidates take part, fast or slow.

    Power of choice (Cho, Wang and Joshi, 2022) in its variant rpow-d, which does not poll clients
    before the round: the loss of a client is the mean over the steps of its last local training,
    and infinite until it has taken part. The paper draws candidates in proportion to their numbers
    of examples; here all are equally likely. With `candidates` = `k` it is `Uniform`.

    Args:
        k: clients per round.
        candidates: d, clients drawn uniformly without replacement.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.participation.PowerOfChoice(5, candidates=20).needs
        ('training_loss',)
    """

    name: ClassVar[str] = "power_of_choice"
    needs: ClassVar[tuple[str, ...]] = (TRAINING_LOSS,)
    k: Count = 10
    candidates: Count = 20

    @override
    def init(self, key: Key, num_clients: int) -> Array:
        """(num_clients,) float, the last loss of each client, infinite at first."""
        check_at_most("power_of_choice: k", self.k, "candidates", self.candidates)
        check_at_most(
            "power_of_choice: candidates", self.candidates, "num_clients", num_clients
        )
        return jnp.full(num_clients, jnp.inf)

    @override
    def select(self, key: Key, losses: Array, times: ClientTimes) -> tuple[Cohort, Array]:
        """The candidates with the highest losses; ties, as of new clients, in the order drawn."""
        candidates = draw(key, losses.shape[0], self.candidates, times.available)
        ranking = losses
        if times.available is not None:
            ranking = jnp.where(times.available, losses, -jnp.inf)
        _, highest = lax.top_k(ranking[candidates], self.k)
        return request(times, candidates[highest]), losses

    @override
    def update(self, losses: Array, info: RoundInfo) -> Array:
        reported = info.reports[TRAINING_LOSS]
        return jnp.where(jnp.isnan(reported), losses, reported)
