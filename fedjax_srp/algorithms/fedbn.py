"""FedBN: every client keeps its BatchNorm, all other layers are shared."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    FedAvgServerState,
    GlobalModel,
    gradient_message,
)
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
    evaluation,
)
from fedjax_srp.models.normalization import is_statistic
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class FedBNClientState(NamedTuple):
    """The client's own normalisation; None where a leaf is shared."""

    own: SplitParams


class FedBNMessage(NamedTuple):
    """A model: shared leaves are sent, own ones are for evaluations."""

    shared: SplitParams
    own: Uncharged


def join(shared: PyTree, own: PyTree) -> PyTree:
    """Join two trees, each None where the other has a leaf."""
    return jax.tree.map(
        lambda one, other: other if one is None else one,
        shared,
        own,
        is_leaf=lambda leaf: leaf is None,
    )


@part
class FedBN(GlobalModel):
    """FedBN (Li et al., 2021, Algorithm 1): BatchNorm is personal, its scales, biases and
    statistics; all other layers are shared. All layers are trained together.

    With `own="statistics"` scales and biases are shared too and only the statistics are
    personal (SiloBN, Andreux et al., 2020). For a model without BatchNorm (with GroupNorm
    instead, say) this is `FedAvg`.

    Evaluations: `own_model` (the default), the shared layers with the client's own
    normalisation, as it last left it; `global`, with the mean normalisation of the last
    round, which no real server has; `fine_tune` (its head) and `fine_tune_all`, the
    `global` model trained on the client.

    Args:
        model: with BatchNorm; its cut only matters to `fine_tune`.
        training: of all layers.
        own: the personal parameters.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.ResNet18((32, 32, 3), num_classes=10, channels=(8, 8, 8, 8))
        >>> list(srp.algorithms.FedBN(model).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    own: Literal["normalisation", "statistics"] = "normalisation"

    def divide(self, params: SplitParams) -> FedBNMessage:
        """Divide the parameters into shared and personal leaves."""
        is_own = is_statistic(params)
        if self.own == "normalisation":
            is_own = self.model.is_normalisation(params)
        shared = jax.tree.map(lambda leaf, own: None if own else leaf, params, is_own)
        own = jax.tree.map(lambda leaf, own: leaf if own else None, params, is_own)
        return FedBNMessage(shared, Uncharged(own))

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> FedBNClientState:
        return FedBNClientState(self.divide(server.params).own.value)

    @override
    def broadcast(self, server: FedAvgServerState, context: RoundContext) -> SplitParams:
        return self.divide(server.params).shared

    @override
    def client(
        self,
        key: Key,
        shared: SplitParams,
        state: FedBNClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from the shared layers and the client's own normalisation
        local = self.local_sgd(key, join(shared, state.own), examples, context)
        message = self.divide(local.params)
        return ClientOutput(
            message,
            state=FedBNClientState(message.own.value),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: FedBNMessage,
        context: RoundContext,
    ):
        # w_l <- sum_i p_i w_(i,l), l not BatchNorm
        return FedAvgServerState(join(mean.shared, mean.own.value))

    @property
    @override
    def gradient(self) -> ClientFunction:
        return self.loss_gradient

    def loss_gradient(
        self,
        key: Key,
        shared: SplitParams,
        state: FedBNClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Gradient of the client's loss in the shared leaves."""

        def loss(
            shared: PyTree, own: PyTree, x: Array, y: Array, key: Key | None
        ) -> Array:
            return self.loss(join(shared, own), (), x, y, key)

        return gradient_message(loss, shared, state.own, examples, self.training, context)

    @evaluation
    def own_model(
        self, key: Key, server: Any, state: FedBNClientState, examples: Examples
    ):
        """The shared layers with the client's own normalisation, as it last left it."""
        params = join(self.divide(server.params).shared, state.own)
        return Partial(self.model.logits, params)
