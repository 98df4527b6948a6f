"""FedPAC: a shared representation, and each client's mixture of all heads."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms._mixture import best_mixture
from fedjax_srp.algorithms.examples import GlobalModel, Penalty
from fedjax_srp.algorithms.fedproto import FedProto, FedProtoServerState, Prototypes
from fedjax_srp.algorithms.local import fit_head, total_loss, without_padding
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Exchange,
    Key,
    Participants,
    Phase,
    PyTree,
    RoundContext,
    evaluation,
    nothing,
    unchanged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, part


class FedPACBroadcast(NamedTuple):
    """The download before training."""

    representation: PyTree
    prototypes: Prototypes


class FedPACClientState(NamedTuple):
    """The client's head, and statistics of its features before the last training."""

    head: PyTree
    # h_i (num_classes, num_features): the mean features of each class, times its share
    means: Array
    # V_i () float: variance of the mean features; inf without examples
    variance: Array


class FedPACMessage(NamedTuple):
    """A client's message: its model, centroids and statistics."""

    params: SplitParams
    prototypes: Prototypes
    statistics: tuple[Array, Array]


@part
class FedPAC(GlobalModel):
    """FedPAC (Xu, Tong and Huang, 2023, Algorithm 1): the representation below the
    model's cut is shared, heads are personal, and after each round a participant's head
    is replaced by a mixture of all participants' heads.

    A participant trains its head under the downloaded representation, then the
    representation under that head on its cross-entropy plus lambda times the mean squared
    difference between an example's features and the global centroid of its class. The
    mixture of client i minimises `sum_j a_j^2 V_j + |sum_j a_j (h_i - h_j)|^2` over
    weights that sum to 1: the variance of the heads' estimates, and their bias due to the
    difference of the clients' mean features h. Heads of clients without examples, whose
    variance is infinite, are left out. Centroids are weighted by the clients' examples of
    the class, as in the authors' code. That code drops weights below 0.001, trains heads
    with their own step size (0.1), and aligns a class without global centroid to the
    client's.

    Evaluations: `own_head` (the default), the client's head under the shared
    representation; `global`, the same with the mean head of the last participants;
    `fine_tune` and `fine_tune_all`, that model trained on the client.

    Args:
        model: cut at its head; its labels are classes.
        training: of head and representation; the paper weighs clients by their examples.
        penalty: lambda; 1 in the authors' code.
        head_epochs: of the head; 1 in the paper.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedPAC(model).evaluations)
        ['own_head', 'global', 'fine_tune', 'fine_tune_all']
    """

    penalty: Penalty = 1.0
    head_epochs: Count = 1

    # The server keeps the representation with the mean head, and the global centroids.
    init = FedProto.init  # pyright: ignore[reportAssignmentType]
    prototypes = FedProto.prototypes
    regularised = FedProto.regularised

    @override
    def init_client(
        self, key: Key, server: FedProtoServerState, examples: Examples
    ) -> FedPACClientState:
        features = server.prototypes.features
        return FedPACClientState(server.params.head, features, features[0, 0])

    @override
    def broadcast(
        self, server: FedProtoServerState, context: RoundContext
    ) -> FedPACBroadcast:
        return FedPACBroadcast(server.params.representation, server.prototypes)

    def aligned(
        self,
        body: PyTree,
        fixed: tuple[PyTree, Prototypes],
        x: Array,
        y: Array,
        key: Key | None,
    ) -> Array:
        """Cross-entropy plus penalized distance to the class's centroid, (batch,)."""
        head, shared = fixed
        return self.regularised(SplitParams(body, head), shared, x, y, key)

    @override
    def client(
        self,
        key: Key,
        down: FedPACBroadcast,
        state: FedPACClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        body, shared = down
        means, variance = self.statistics(SplitParams(body, state.head), examples)
        # phi_i <- local SGD on f_i under the downloaded representation
        now = self.training.in_round(context)
        now = now._replace(epochs=self.head_epochs, steps=None)
        head = fit_head(key, self.model, body, state.head, examples, now)
        # theta_i <- local SGD on f_i + lambda R_i under the new head
        trained = self.local_sgd(
            key,
            body,
            examples,
            context,
            loss=self.aligned,
            frozen=(head.params, shared),
        )
        params = SplitParams(trained.params, head.params)
        # The client's centroid of each class, times its number of examples of the class.
        own = self.prototypes(params, examples)
        centroids = own._replace(features=own.features * own.weight[:, None])
        return ClientOutput(
            message=FedPACMessage(params, centroids, (means, variance)),
            state=FedPACClientState(head.params, means, variance),
            weight=FedPACMessage(self.training.weight(examples), 1.0, 1.0),  # type: ignore[arg-type]
            loss=total_loss(head.loss, trained.loss),
        )

    def statistics(self, params: SplitParams, examples: Examples) -> tuple[Array, Array]:
        """Class shares times the classes' mean features, and the variance V_i."""
        own = self.prototypes(params, examples)
        count = jnp.maximum(examples.count, 1).astype(own.features.dtype)
        # h_i[y] = p_y mean_y
        means = own.features * own.weight[:, None] / count
        # V_i = (mean |f|^2 - sum_y |p_y mean_y|^2) / n_i
        x, _, valid = without_padding(examples)
        features = self.features(params.representation, x)
        squares = jnp.sum(jnp.square(features), axis=1)
        square = jnp.sum(jnp.where(valid, squares, 0)) / count
        variance = (square - jnp.sum(jnp.square(means))) / count
        return means, jnp.where(examples.count > 0, variance, jnp.inf)

    @override
    def server(
        self,
        key: Key,
        server: FedProtoServerState,
        mean: FedPACMessage,
        context: RoundContext,
    ):
        new = FedProto.server(self, key, server, mean.prototypes, context)  # type: ignore[arg-type]
        return new._replace(params=mean.params)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # After training every participant downloads its mixture of heads.
        mixtures = Exchange(lambda state: state, self.mix_heads)
        finish = Phase("finish", nothing, self.take, unchanged, mixtures)
        return (*super().phases, finish)

    def take(
        self,
        key: Key,
        head: PyTree,
        state: FedPACClientState,
        examples: Examples,
        context: RoundContext,
    ):
        """Replace the client's head."""
        return ClientOutput((), state._replace(head=head))

    def mix_heads(
        self,
        broadcast: tuple[()],
        own: FedPACClientState,
        others: Participants,
        context: RoundContext,
    ):
        """The new head of one client: the best mixture of all heads."""
        heads: FedPACClientState = others.shown
        has_examples = others.takes_part & (heads.variance < jnp.inf)
        variance = jnp.where(has_examples, heads.variance, 0)
        # P_jk = <h_i - h_j, h_i - h_k> + V_j [j = k]
        differences = own.means[None] - heads.means
        differences = differences.reshape(others.takes_part.shape[0], -1)
        products = jnp.matmul(differences, differences.T, precision="highest")
        costs = products + jnp.diag(variance)
        allowed = jnp.where(jnp.any(has_examples), has_examples, others.takes_part)
        weights = best_mixture(costs, allowed)
        # phi_i <- sum_j a_j phi_j
        mix = lambda leaf: jnp.tensordot(weights, leaf, 1, precision="highest")
        return jax.tree.map(mix, heads.head)

    @evaluation
    def own_head(
        self,
        key: Key,
        server: FedProtoServerState,
        state: FedPACClientState,
        examples: Examples,
    ):
        """The client's own mixture of heads under the shared representation."""
        params = server.params._replace(head=state.head)
        return Partial(self.model.logits, params)
