"""FedDWA: every client gets a mixture of the models nearest to where its own is going."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel, OwnModel
from fedjax_srp.algorithms.local import local_sgd, square_norm
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Exchange,
    Key,
    Participants,
    Phase,
    RoundContext,
    named_key,
    nothing,
)
from fedjax_srp.models.normalization import without_statistics
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, part


class FedDWAState(NamedTuple):
    """A client's model w_i, and its guidance model w_i', trained for longer; both sent."""

    params: SplitParams
    guidance: SplitParams


@part
class FedDWA(OwnModel):
    """FedDWA (Liu et al., 2023), dynamic weight adjustment: every part of the model is
    personal, and a client downloads a mixture u_i of the participants' models. Clusters
    are found by the clients' distances, without their number.

    A participant trains from its mixture, and then goes on for `guidance_epochs`. The
    server weighs the models of others by their distance to this guidance model, p_ij
    proportional to 1 over the squared distance of w_i' and w_j, of which only the
    `num_neighbours` largest count; the client's own model w_i is one of all. Statistics
    of BatchNorm have no part in the distances. Under full participation the mixtures are
    the paper's; otherwise they have only the last models of the participants. A lone
    participant trains on as in `LocalOnly`. Both models are sent, so uploads are twice
    those of `FedAvg`; every device holds both of all participants.

    Evaluations: `own_model` (the default), the client's model as it last left it, before
    the guidance; `fine_tune`, its head trained further. The authors' code judges the next
    mixture, which needs the models of others. The server's state is the mean of the last
    participants' models, which no client downloads.

    Args:
        training: of the clients; its weighting is that of the mean, which has no effect
            on the clients.
        num_neighbours: K, the models in a mixture; 5 in the authors' code.
        guidance_epochs: of the guidance model, per unit of work; in the authors' code as
            many as of a round.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedDWA(model, num_neighbours=3).evaluations)
        ['own_model', 'fine_tune']
    """

    num_neighbours: Count = 5
    guidance_epochs: Count = 1

    init = GlobalModel.init

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # Every participant downloads its own mixture of the last models.
        mixtures = Exchange(lambda state: state, self.mix)
        return (Phase("round", nothing, self.client, self.server, mixtures),)

    @override
    def init_client(self, key: Key, server: FedAvgServerState, examples: Examples) -> Any:
        return FedDWAState(server.params, server.params)

    def mix(
        self,
        broadcast: tuple[()],
        own: FedDWAState,
        others: Participants,
        context: RoundContext,
    ) -> SplitParams:
        """The mixture u_i of one participant."""
        models = others.shown.params

        def square(model: SplitParams) -> Array:
            difference = jax.tree.map(jnp.subtract, own.guidance, model)
            return square_norm(without_statistics(difference))

        squares = jax.lax.map(square, models)
        # Two models may be equal, as all are at the beginning.
        squares = jnp.maximum(squares, jnp.finfo(squares.dtype).tiny)
        squares = jnp.where(others.takes_part, squares, jnp.inf)
        num_neighbours = min(self.num_neighbours, squares.shape[0])
        nearest, which = jax.lax.top_k(-squares, num_neighbours)
        # p_ij = |w_i' - w_j|^-2 / sum_l |w_i' - w_l|^-2, over the nearest
        relative = nearest[0] / nearest
        weights = jnp.zeros_like(squares).at[which].set(relative / jnp.sum(relative))

        # u_i = sum_j p_ij w_j
        def mixture(leaf: Array) -> Array:
            takes_part = jnp.expand_dims(others.takes_part, tuple(range(1, leaf.ndim)))
            present = jnp.where(takes_part, leaf, 0)
            return jnp.tensordot(
                weights.astype(leaf.dtype), present, 1, precision="highest"
            )

        return jax.tree.map(mixture, models)

    @override
    def client(
        self,
        key: Key,
        mixture: SplitParams,
        state: FedDWAState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from u_i
        local = self.local_sgd(key, mixture, examples, context)
        # w_i' <- local SGD from w_i
        longer = self.training_in(context)._replace(
            epochs=self.guidance_epochs, steps=None
        )
        key_guidance = named_key(key, "guidance")
        guidance = local_sgd(
            key_guidance, self.loss, local.params, (), examples, longer
        ).params
        both = FedDWAState(local.params, guidance)
        return ClientOutput(
            message=both,
            state=both,
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: FedDWAState,
        context: RoundContext,
    ) -> FedAvgServerState:
        return FedAvgServerState(mean.params)
