"""IFCA: a model for each cluster of clients, which choose the cluster themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import ExampleAlgorithm
from fedjax_srp.algorithms.local import mean_loss, with_tuned_head
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, part


class IFCAServerState(NamedTuple):
    """The models theta_1, ..., theta_k of the clusters."""

    params: SplitParams  # leaves (num_clusters, ...)


class IFCAMessage(NamedTuple):
    """A client's model, and its cluster; both are averaged within the clusters."""

    params: SplitParams
    cluster: Array  # () int32: 1, ..., k


@part
class IFCA(ExampleAlgorithm):
    """IFCA (Ghosh et al., 2020, Algorithm 1 with model averaging): clusters share a model
    each, nothing is personal.

    A participant downloads the models of all clusters, takes that of least loss on its
    training examples, trains it and sends it with its cluster's index. The new model of a
    cluster is the mean of its participants' models; one without participants stays. The
    models start at random, each from a draw of its own. With one cluster this is
    `FedAvg`. The paper also shares the lower layers between clusters, and restarts from
    other models; neither is here. A run that begins from given parameters is given those
    of all clusters, stacked.

    Evaluations: `cluster` (the default), the model of least loss on the client's training
    examples; `fine_tune`, its head trained on the client.

    Args:
        training: of the clients; its weighting is that of the means, uniform in the
            paper.
        num_clusters: k; 4 for the paper's rotated MNIST, 2 for its rotated CIFAR.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.IFCA(model, num_clusters=2).evaluations)
        ['cluster', 'fine_tune']
    """

    num_clusters: Count = 4

    @override
    def init(self, key: Key, data: Any) -> IFCAServerState:
        key_clusters = named_key(key, "clusters")
        keys = [jax.random.fold_in(key_clusters, j) for j in range(1, self.num_clusters)]
        models = self.init_params(key, data), *map(self.model.init, keys)
        return IFCAServerState(jax.tree.map(lambda *leaves: jnp.stack(leaves), *models))

    @override
    def broadcast(self, server: IFCAServerState, context: RoundContext) -> SplitParams:
        return server.params

    def cluster_of(self, models: SplitParams, examples: Examples) -> Array:
        """The cluster whose model has the least loss on a client's examples, () int32."""
        # j <- argmin_j F_i(theta_j)
        losses = jax.lax.map(
            lambda params: mean_loss(self.loss, params, (), examples), models
        )
        return jnp.argmin(losses).astype(jnp.int32)

    def model_of(self, models: SplitParams, examples: Examples) -> SplitParams:
        """The model of a client's cluster."""
        cluster = self.cluster_of(models, examples)
        return jax.tree.map(lambda leaf: leaf[cluster], models)

    @override
    def client(
        self,
        key: Key,
        models: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        cluster = self.cluster_of(models, examples)
        params = jax.tree.map(lambda leaf: leaf[cluster], models)
        # theta_i <- local SGD on f_i from theta_j
        local = self.local_sgd(key, params, examples, context)
        is_own = jnp.arange(self.num_clusters, dtype=jnp.int32) == cluster
        weight = self.training.weight(examples)
        # s_ij, times the weight of the client
        in_cluster = jnp.where(is_own, weight, 0)
        message = IFCAMessage(local.params, cluster + 1)
        return ClientOutput(message, weight=in_cluster, loss=local.loss)

    @override
    def server(
        self,
        key: Key,
        server: IFCAServerState,
        mean: IFCAMessage,
        context: RoundContext,
    ) -> IFCAServerState:
        # the mean over no clients is 0
        has_clients = mean.cluster > 0

        def updated(last: Array, new: Array) -> Array:
            is_new = jnp.expand_dims(has_clients, tuple(range(1, new.ndim)))
            return jnp.where(is_new, new, last)

        # theta_j <- sum_i s_ij theta_i / sum_i s_ij
        return IFCAServerState(jax.tree.map(updated, server.params, mean.params))

    @evaluation
    def cluster(self, key: Key, server: Any, state: tuple, examples: Examples):
        """The model of the client's cluster, that of least loss on its training
        examples.
        """
        return Partial(self.model.logits, self.model_of(server.params, examples))

    @evaluation
    def fine_tune(self, key: Key, server: Any, state: tuple, examples: Examples):
        """The model of the client's cluster, its head trained on the client."""
        params = self.model_of(server.params, examples)
        return with_tuned_head(key, self.model, params, examples, self.tuning)
