"""FedDBE: a client remembers how its features differ, so that shared layers need not."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import GlobalModel
from fedjax_srp.algorithms.local import dtype_of, local_sgd, without_padding
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    Phase,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.normalization import weights_of_batch
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, part


class FedDBEServerState(NamedTuple):
    """The global model w, and the mean features z of the federation."""

    params: SplitParams
    mean: Array  # of the shape of one example's features


class FedDBEClientState(NamedTuple):
    """z_i: what the client adds to its features."""

    bias: Array


class WithBias(NamedTuple):
    """A model and what is added to its features."""

    params: SplitParams
    bias: Array


@part
class FedDBE(GlobalModel):
    """FedAvg with the domain bias eliminator (Zhang et al., 2023): the model is shared; a
    vector that every client adds to its features, at the model's cut, is personal.

    A client trains both by the same steps, and the mean features of each batch are held
    near those of the federation by kappa / 2 times the mean squared difference. Those are
    collected once, before the first round, from all clients: each trains the first model
    for an epoch without the rest of the method and sends its mean features, weighted by
    its examples; the trained models are discarded. The authors' code takes a moving
    average over the batches of that epoch, and of those of training, with momentum 1 in
    its commands: the last batch alone. Here the first are the mean over all examples,
    after the epoch.

    Evaluations: `own_model` (the default), the global model with the client's vector;
    `global`, `fine_tune` and `fine_tune_all`, as in `FedAvg`, without it.

    Args:
        model: cut after the features.
        training: of the clients; weighting is "num_examples" in the authors' code.
        mean_penalty: kappa, 50 in the authors' commands.
        charge_start: the pass before the first round takes time and bytes,
            `history.start`: that of the slowest client's epoch. `clocks.Devices` cannot.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedDBE(model, mean_penalty=1.0).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    supports_batch_norm: ClassVar[bool] = False

    mean_penalty: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 50.0"] = 50.0
    charge_start: bool = False

    @override
    def init(self, key: Key, data: Any) -> FedDBEServerState:
        params = self.init_params(key, data)
        x = jnp.zeros((1, *self.model.input_shape), self.model.input_dtype)
        # refuses models without features
        jax.eval_shape(self.features, params.representation, x)
        features = jax.eval_shape(self.model.represent, params.representation, x)
        return FedDBEServerState(params, jnp.zeros(features.shape[1:], dtype_of(params)))

    @override
    def init_client(
        self, key: Key, server: FedDBEServerState, examples: Examples
    ) -> FedDBEClientState:
        return FedDBEClientState(jnp.zeros_like(server.mean))

    @override
    def broadcast(
        self, server: FedDBEServerState, context: RoundContext
    ) -> FedDBEServerState:
        return server

    # Before the first round: the mean features.

    @property
    @override
    def start_phases(self) -> tuple[Phase, ...]:
        collect = Phase(
            "means",
            super().broadcast,
            self.collect,
            self.keep_mean,
            charged=self.charge_start,
        )
        return (collect,)

    def collect(
        self,
        key: Key,
        params: SplitParams,
        state: FedDBEClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Mean features of a client, after an epoch of training."""
        epoch = self.training_in(context)._replace(epochs=1, steps=None)
        key_local = named_key(key, "local")
        trained = local_sgd(key_local, self.loss, params, (), examples, epoch).params
        x, _, valid = without_padding(examples)
        features = self.model.represent(trained.representation, x)
        # z_i <- mean of the features
        count = examples.count.astype(features.dtype)
        weights = valid.astype(features.dtype) / jnp.maximum(count, 1)
        mean = jnp.tensordot(weights, features, 1, precision="highest")
        mean = jnp.where(examples.count > 0, mean, 0)
        return ClientOutput(mean, weight=examples.count.astype(float))

    def keep_mean(
        self, key: Key, server: FedDBEServerState, mean: Array, context: RoundContext
    ) -> FedDBEServerState:
        """The server's state with the mean features of all clients."""
        # z <- sum_i (n_i / n) z_i
        return server._replace(mean=mean)

    # Rounds.

    def debiased(
        self, own: WithBias, mean: Array, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss with the client's vector, and the distance of the means, (batch,)."""
        features = self.model.represent(own.params.representation, x, key)
        weights = weights_of_batch(x.shape[0], features.dtype)
        of_batch = jnp.tensordot(weights, features, 1, precision="highest")
        # f_i(w_i, z_i) + kappa / 2 * mean over the features of (batch's mean - z)^2
        distance = jnp.mean(jnp.square(of_batch - mean)) / 2
        outputs = self.model.classify(own.params.head, features + own.bias[None], key)
        return self.model.loss(outputs, y) + self.mean_penalty * distance

    @override
    def client(
        self,
        key: Key,
        server: FedDBEServerState,
        state: FedDBEClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # (w_i, z_i) <- local SGD from (w, z_i)
        start = WithBias(server.params, state.bias)
        local = self.local_sgd(
            key, start, examples, context, loss=self.debiased, frozen=server.mean
        )
        return ClientOutput(
            message=local.params.params,
            state=FedDBEClientState(local.params.bias),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: FedDBEServerState,
        mean: SplitParams,
        context: RoundContext,
    ) -> FedDBEServerState:
        # w <- sum_i p_i w_i
        return server._replace(params=mean)

    @evaluation
    def own_model(
        self,
        key: Key,
        server: FedDBEServerState,
        state: FedDBEClientState,
        examples: Examples,
    ):
        """The global model, the client's own vector added to its features."""
        return Partial(self.outputs, WithBias(server.params, state.bias))

    def outputs(self, own: WithBias, x: Array) -> Array:
        """The outputs of a model with a client's vector."""
        features = self.model.represent(own.params.representation, x)
        return self.model.classify(own.params.head, features + own.bias[None])
