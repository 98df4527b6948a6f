"""FedRoD: a shared model with a class-balanced loss, and a personal head beside the shared one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.examples import GlobalModel
from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.algorithms.local import local_sgd
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class FedRoDClientState(NamedTuple):
    """The personal head, whose logits are added to those of the generic head."""

    head: PyTree


class Both(NamedTuple):
    """The trained parameters of a client."""

    shared: SplitParams
    head: PyTree


@part
class FedRoD(GlobalModel):
    """FedRoD (Chen and Chao, 2022), with linear personal heads: the whole model is shared, and each client has its own
    head beside the shared one.

    The shared model descends the balanced softmax loss, which corrects for unequal numbers of examples of the classes.
    The personal head descends the plain loss of the sum of both heads' logits, which changes neither the features nor
    the generic head. A client with equally many examples of every class of the model trains the shared model as in
    `FedAvg`.

    Evaluations: `own_model` (the default), both heads; `global`, the shared model alone; `fine_tune` and
    `fine_tune_all`, the shared model trained on the client.

    Args:
        model: cut at its head; its labels are classes.
        training: of model and head; the paper weighs clients by their examples.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedRoD(model).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    init, broadcast, server = (
        FedAvg.init,
        FedAvg.broadcast,
        FedAvg.server,
    )  # of the shared model

    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> FedRoDClientState:
        """A copy of the generic head."""
        return FedRoDClientState(server.params.head)

    def both_losses(
        self, params: Both, log_counts: Array, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The sum of both losses of each example, (batch,)."""
        features = self.model.represent(params.shared.representation, x, key)
        generic = self.model.classify(params.shared.head, features, key)
        own = self.model.classify(params.head, jax.lax.stop_gradient(features), key)
        balanced = self.model.loss(generic + log_counts[None], y)
        return balanced + self.model.loss(jax.lax.stop_gradient(generic) + own, y)

    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedRoDClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Local SGD on both losses at once: neither has a gradient in the parameters that the other one trains."""
        is_real = jnp.arange(examples.y.shape[0], dtype=jnp.int32) < examples.count
        one_hot = self.one_hot(examples.y, jax.tree.leaves(params)[0].dtype)
        # log n_y of each class y; a class without examples gets a tiny n_y, and so no probability
        counts = jnp.sum(jnp.where(is_real[:, None], one_hot, 0), axis=0)
        log_counts = jnp.log(jnp.maximum(counts, jnp.finfo(counts.dtype).tiny))
        start, now = Both(params, state.head), self.training.in_round(context)
        local = local_sgd(
            named_key(key, "local"), self.both_losses, start, log_counts, examples, now
        )
        trained: Both = local.params
        weight = self.training.weight(examples)
        return ClientOutput(
            trained.shared, FedRoDClientState(trained.head), weight, loss=local.loss
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

        def predict(x: Array) -> Array:
            features = self.model.represent(server.params.representation, x)
            return self.model.classify(
                server.params.head, features
            ) + self.model.classify(state.head, features)

        return predict
