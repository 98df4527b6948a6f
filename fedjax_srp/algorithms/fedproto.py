"""FedProto: every client has its own model, and clients share the mean features of each class."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.examples import OwnModel, OwnModelState
from fedjax_srp.algorithms.local import local_sgd
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
from fedjax_srp.parts.part import AtLeast, part


class Prototypes(NamedTuple):
    """Mean features of each class; zeros with weight zero for classes that no client has sent yet."""

    features: Array  # (num_classes, num_features) float
    weight: Array  # (num_classes,) float


class FedProtoServerState(NamedTuple):
    """The global prototypes, and the initial model."""

    prototypes: Prototypes
    params: SplitParams


@part
class FedProto(OwnModel):
    """FedProto (Tan et al., 2022, Algorithm 1): models are personal, prototypes are shared.

    A prototype is the mean of a class's features at the model's cut. A client descends its cross-entropy plus lambda
    times the mean squared difference between an example's features and the global prototype of its class, then sends
    its own prototypes. A global prototype is the mean over the participants that have the class: uniform, as in the
    authors' code, or in proportion to their examples of the class. (The paper's equation 6 divides by the number of
    clients a second time.) A class that no participant has keeps its prototype. With lambda = 0 training is that of
    `LocalOnly`.

    Evaluations: `nearest_prototype` (the default), the class of the global prototype nearest to the features of the
    client's own model, as in the paper; `own_model`, that model with its head; `fine_tune`, the same with its head
    trained further.

    Args:
        model: cut after the shared features; its labels are classes.
        training: of the clients; its weighting is that of the prototypes.
        penalty: lambda; 1 in the paper's experiments on MNIST and FEMNIST, 0.1 on CIFAR-10.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedProto(model).evaluations)
        ['nearest_prototype', 'own_model', 'fine_tune']
    """

    penalty: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 1.0"] = 1.0

    def init(self, key: Key, data: Any) -> FedProtoServerState:
        """No prototypes, and the initial parameters."""
        params = self.init_params(key, data)
        x = jnp.zeros((1, *self.model.input_shape), self.model.input_dtype)
        width = jax.eval_shape(self.features, params.representation, x).shape[1]
        features = jnp.zeros(
            (self.model.num_classes, width), jax.tree.leaves(params)[0].dtype
        )
        return FedProtoServerState(Prototypes(features, features[:, 0]), params)

    def broadcast(self, server: FedProtoServerState, context: RoundContext) -> Prototypes:
        """The global prototypes."""
        return server.prototypes

    def regularised(
        self, params: SplitParams, shared: Prototypes, x: Array, y: Array, key: Key | None
    ) -> Array:
        """Cross-entropy plus penalized distance to the class's prototype of each example, (batch,)."""
        features = self.model.represent(params.representation, x, key)
        is_label = self.one_hot(y, features.dtype)
        is_known = is_label @ (shared.weight > 0).astype(features.dtype)
        difference = features.reshape(x.shape[0], -1) - is_label @ shared.features
        distance = is_known * jnp.mean(jnp.square(difference), axis=1)
        return (
            self.model.loss(self.model.classify(params.head, features, key), y)
            + self.penalty * distance
        )

    def client(
        self,
        key: Key,
        shared: Prototypes,
        state: OwnModelState,
        examples: Examples,
        context: RoundContext,
    ):
        """Local SGD on the own model, then the means of its features."""
        # w_i <- local SGD on f_i(w_i) + lambda R_i(w_i, shared), from w_i
        now = self.training.in_round(context)
        local = local_sgd(
            named_key(key, "local"), self.regularised, state.params, shared, examples, now
        )
        own = self.prototypes(local.params, examples)
        if self.training.weighting == "uniform":
            own = own._replace(weight=(own.weight > 0).astype(own.weight.dtype))
        weighted = own._replace(features=own.features * own.weight[:, None])
        return ClientOutput(weighted, OwnModelState(local.params), loss=local.loss)

    def prototypes(self, params: SplitParams, examples: Examples) -> Prototypes:
        """Mean features of each class, and the client's number of its examples."""
        rows = jnp.arange(examples.y.shape[0], dtype=jnp.int32)
        is_real = rows < examples.count
        x = examples.x[jnp.where(is_real, rows, 0)]  # padding is never read
        one_hot = self.one_hot(examples.y, jax.tree.leaves(params)[0].dtype)
        members = jnp.where(is_real[:, None], one_hot, 0)
        counts = jnp.sum(members, axis=0)
        # C_i^(j) <- mean over the examples of class j
        return Prototypes(
            members.T
            @ self.features(params.representation, x)
            / jnp.maximum(counts, 1)[:, None],
            counts,
        )

    def server(
        self,
        key: Key,
        server: FedProtoServerState,
        mean: Prototypes,
        context: RoundContext,
    ):
        """The mean prototype of each class that a participant has."""
        is_new = mean.weight > 0
        means = mean.features / jnp.where(is_new, mean.weight, 1)[:, None]
        last = server.prototypes
        features = jnp.where(is_new[:, None], means, last.features)
        return server._replace(
            prototypes=Prototypes(features, jnp.where(is_new, mean.weight, last.weight))
        )

    @evaluation
    def nearest_prototype(
        self,
        key: Key,
        server: FedProtoServerState,
        state: OwnModelState,
        examples: Examples,
    ):
        """The class of the global prototype that is nearest to the features of the client's own model."""

        def predict(x: Array) -> Array:
            shared, features = (
                server.prototypes,
                self.features(state.params.representation, x),
            )
            products = jnp.matmul(features, shared.features.T, precision="highest")
            # -|z - C|^2, without |z|^2, which is the same for all classes
            scores = 2 * products - jnp.sum(jnp.square(shared.features), axis=1)[None]
            return jnp.where(shared.weight[None] > 0, scores, -jnp.inf)

        return predict
