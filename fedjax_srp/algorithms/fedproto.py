"""FedProto: own models; clients share the mean features of each class."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import OwnModel, OwnModelState, Penalty
from fedjax_srp.algorithms.local import dtype_of, without_padding
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


class Prototypes(NamedTuple):
    """Mean features of each class; weight 0 for classes that no client has sent."""

    features: Array  # (num_classes, num_features) float
    weight: Array  # (num_classes,) float


class PrototypeModel(NamedTuple):
    """The parameters by which a client is judged."""

    representation: PyTree
    prototypes: Prototypes


class FedProtoServerState(NamedTuple):
    """The global prototypes, and the initial model."""

    prototypes: Prototypes
    params: SplitParams


@part
class FedProto(OwnModel):
    """FedProto (Tan et al., 2022, Algorithm 1): models are personal, prototypes are
    shared.

    A prototype is the mean of a class's features at the model's cut. A client descends
    its cross-entropy plus lambda times the mean squared difference between an example's
    features and the global prototype of its class, then sends its own prototypes. A
    global prototype is the mean over the participants that have the class: uniform, as in
    the authors' code, or in proportion to their examples of the class. (The paper's
    equation 6 divides by the number of clients a second time.) A class that no
    participant has keeps its prototype. With lambda = 0 training is that of `LocalOnly`.

    Evaluations: `nearest_prototype` (the default), the class of the global prototype
    nearest to the features of the client's own model, as in the paper; `own_model`, that
    model with its head; `fine_tune`, the same with its head trained further.

    Args:
        model: cut after the shared features; its labels are classes.
        training: of the clients; its weighting is that of the prototypes.
        penalty: lambda; 1 in the paper's experiments on MNIST and FEMNIST, 0.1 on
            CIFAR-10.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedProto(model).evaluations)
        ['nearest_prototype', 'own_model', 'fine_tune']
    """

    sends_changes: ClassVar[bool] = True

    penalty: Penalty = 1.0

    @override
    def init(self, key: Key, data: Any) -> FedProtoServerState:
        params = self.init_params(key, data)
        x = jnp.zeros((1, *self.model.input_shape), self.model.input_dtype)
        width = jax.eval_shape(self.features, params.representation, x).shape[1]
        features = jnp.zeros((self.model.num_classes, width), dtype_of(params))
        return FedProtoServerState(Prototypes(features, features[:, 0]), params)

    @override
    def broadcast(self, server: FedProtoServerState, context: RoundContext) -> Prototypes:
        return server.prototypes

    def regularised(
        self, params: SplitParams, shared: Prototypes, x: Array, y: Array, key: Key | None
    ) -> Array:
        """Cross-entropy plus penalized distance to the class's prototype, (batch,)."""
        features = self.model.represent(params.representation, x, key)
        is_label = self.one_hot(y, features.dtype)
        has_prototype = is_label @ (shared.weight > 0).astype(features.dtype)
        difference = features.reshape(x.shape[0], -1) - is_label @ shared.features
        distance = has_prototype * jnp.mean(jnp.square(difference), axis=1)
        outputs = self.model.classify(params.head, features, key)
        # f_i(w_i) + lambda R_i(w_i, shared)
        return self.model.loss(outputs, y) + self.penalty * distance

    @override
    def client(
        self,
        key: Key,
        shared: Prototypes,
        state: OwnModelState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD on f_i(w_i) + lambda R_i(w_i, shared), from w_i
        local = self.local_sgd(
            key, state.params, examples, context, loss=self.regularised, frozen=shared
        )
        own = self.prototypes(local.params, examples)
        if self.training.weighting == "uniform":
            own = own._replace(weight=(own.weight > 0).astype(own.weight.dtype))
        weighted = own._replace(features=own.features * own.weight[:, None])
        return ClientOutput(weighted, OwnModelState(local.params), loss=local.loss)

    def prototypes(self, params: SplitParams, examples: Examples) -> Prototypes:
        """Mean features of each class, and the client's number of its examples."""
        x = without_padding(examples).x
        members = self.members(examples, dtype_of(params))
        counts = jnp.sum(members, axis=0)
        # C_i^(j) <- mean over the examples of class j
        sums = members.T @ self.features(params.representation, x)
        return Prototypes(sums / jnp.maximum(counts, 1)[:, None], counts)

    @override
    def server(
        self,
        key: Key,
        server: FedProtoServerState,
        mean: Prototypes,
        context: RoundContext,
    ):
        # C^(j) <- sum_i p_i C_i^(j) / sum_i p_i over the participants that have class j
        is_new = mean.weight > 0
        means = mean.features / jnp.where(is_new, mean.weight, 1)[:, None]
        last = server.prototypes
        features = jnp.where(is_new[:, None], means, last.features)
        weight = jnp.where(is_new, mean.weight, last.weight)
        return server._replace(prototypes=Prototypes(features, weight))

    @evaluation
    def nearest_prototype(
        self,
        key: Key,
        server: FedProtoServerState,
        state: OwnModelState,
        examples: Examples,
    ):
        """The class of the global prototype that is nearest to the features of the
        client's own model.
        """
        model = PrototypeModel(state.params.representation, server.prototypes)
        return Partial(self.nearness, model)

    def nearness(self, model: PrototypeModel, x: Array) -> Array:
        """The nearness to the prototype of each class, (batch, num_classes)."""
        shared = model.prototypes
        features = self.features(model.representation, x)
        products = jnp.matmul(features, shared.features.T, precision="highest")
        # -|z - C|^2, without |z|^2, which is the same for all classes
        scores = 2 * products - jnp.sum(jnp.square(shared.features), axis=1)[None]
        return jnp.where(shared.weight[None] > 0, scores, -jnp.inf)
