"""FedRoD: a shared model with a balanced loss, a personal head beside its own."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.algorithms.local import dtype_of
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    evaluation,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class FedRoDClientState(NamedTuple):
    """The personal head, whose logits are added to those of the generic head."""

    head: PyTree


class Both(NamedTuple):
    """The parameters of a client: the shared model, and its own head."""

    shared: SplitParams
    head: PyTree


@part
class FedRoD(GlobalModel):
    """FedRoD (Chen and Chao, 2022), with linear personal heads: the whole model is
    shared, and each client has its own head beside the shared one.

    The shared model descends the balanced softmax loss, which corrects for unequal
    numbers of examples of the classes. The personal head descends the plain loss of the
    sum of both heads' logits, which changes neither the features nor the generic head. A
    client with equally many examples of every class of the model trains the shared model
    as in `FedAvg`.

    Evaluations: `own_model` (the default), both heads; `global`, the shared model alone;
    `fine_tune` and `fine_tune_all`, the shared model trained on the client.

    Args:
        model: cut at its head; its labels are classes.
        training: of model and head; the paper weighs clients by their examples.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedRoD(model).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> FedRoDClientState:
        return FedRoDClientState(server.params.head)

    def both_losses(
        self, params: Both, log_counts: Array, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The sum of both losses of each example, (batch,)."""
        features = self.model.represent(params.shared.representation, x, key)
        generic = self.model.classify(params.shared.head, features, key)
        own = self.model.classify(params.head, jax.lax.stop_gradient(features), key)
        # Neither loss has a gradient in the parameters that the other one trains.
        balanced = self.model.loss(generic + log_counts[None], y)
        return balanced + self.model.loss(jax.lax.stop_gradient(generic) + own, y)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedRoDClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        # log n_y of each class y; a class without examples gets a tiny n_y, and so no
        # probability
        counts = jnp.sum(self.members(examples, dtype_of(params)), axis=0)
        log_counts = jnp.log(jnp.maximum(counts, jnp.finfo(counts.dtype).tiny))
        # (theta_i, psi_i) <- local SGD on both losses, from (theta, psi_i)
        start = Both(params, state.head)
        local = self.local_sgd(
            key, start, examples, context, loss=self.both_losses, frozen=log_counts
        )
        trained: Both = local.params
        return ClientOutput(
            message=trained.shared,
            state=FedRoDClientState(trained.head),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @evaluation
    def own_model(
        self,
        key: Key,
        server: FedAvgServerState,
        state: FedRoDClientState,
        examples: Examples,
    ):
        """The shared model with the client's own head beside the generic one."""
        return Partial(self.sum_of_heads, Both(server.params, state.head))

    def sum_of_heads(self, params: Both, x: Array) -> Array:
        """The sum of both heads' logits, (batch, num_classes)."""
        features = self.model.represent(params.shared.representation, x)
        generic = self.model.classify(params.shared.head, features)
        return generic + self.model.classify(params.head, features)
