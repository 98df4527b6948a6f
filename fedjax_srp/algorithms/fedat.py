"""FedAT: tiers of clients update the server; slow tiers get more weight."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    ModelsOfStages,
    Penalty,
    stacked,
    with_model,
)
from fedjax_srp.algorithms.fedprox import FedProx
from fedjax_srp.base import Array, Key, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, part


class FedATServerState(NamedTuple):
    """The global model w, and the models of each tier."""

    params: SplitParams
    # Leaves (tiers, ...): the model with which the tier began its round.
    sent: SplitParams
    tiers: SplitParams  # leaves (tiers, ...): the tier's last model
    updates: Array  # (tiers,) int32: number of rounds finished by the tier


@part
class FedAT(ModelsOfStages, FedProx):
    """FedAT (Chai et al., 2021, Algorithm 2): every part of the model is shared, tiers
    may be stale.

    For `participation.AsynchronousTiers(k, tiers)`, where a round is one of the tier
    `context.stage`. Its clients train from the model with which the tier began, as in
    `FedProx`, and their mean becomes the model of the tier. The server averages the
    models of the M tiers, tier m weighted by the number of updates of tier M + 1 - m: the
    slowest tier by that of the fastest one. So, as in the paper, the model of a finished
    tier m has no weight before tier M + 1 - m has finished too. With one tier this is
    `FedProx`. The paper's compression is left out.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients; weighting is "num_examples" in the paper.
        mu: lambda of the proximal term, 0.4 in the paper.
        num_tiers: as in the policy; with fewer the model becomes nan and the run counts
            as diverged.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.FedAT(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)), num_tiers=2)
        >>> options = {"participation": srp.participation.AsynchronousTiers(5, tiers=2), "num_rounds": 4}
        >>> history = srp.simulate(algorithm, data, key=jax.random.key(0), progress=False, **options)
        >>> history.asynchronous
        True
    """

    mu: Penalty = 0.4
    num_tiers: Count = 5

    @override
    def of_params(self, params: SplitParams) -> FedATServerState:
        each = stacked(params, self.num_tiers)
        return FedATServerState(params, each, each, jnp.zeros(self.num_tiers, jnp.int32))

    @override
    def server(
        self, key: Key, server: FedATServerState, mean: SplitParams, context: RoundContext
    ):
        m = context.stage
        # w_m <- sum_i n_i / n w_i, T_m <- T_m + 1
        tiers = with_model(server.tiers, m, mean)
        updates = server.updates.at[m].add(1)
        # w <- sum_m T_{M + 1 - m} / T w_m
        share = updates[::-1].astype(float) / jnp.sum(updates).astype(float)
        share = jnp.where(m < self.num_tiers, share, jnp.nan)

        def mix(models: Array) -> Array:
            weights = share.astype(models.dtype)
            return jnp.tensordot(weights, models, 1, precision="highest")

        params = jax.tree.map(mix, tiers)
        return FedATServerState(
            params, with_model(server.sent, m, params), tiers, updates
        )
