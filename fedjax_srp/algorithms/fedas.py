"""FedAS: clients align the shared representation, weighted by Fisher information."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    FedAvgServerState,
    GlobalModel,
    OwnModel,
    OwnModelState,
)
from fedjax_srp.algorithms.fedproto import FedProto, Prototypes
from fedjax_srp.algorithms.local import (
    Objective,
    dtype_of,
    local_sgd,
    plain_gradient,
    square_norm,
)
from fedjax_srp.algorithms.optimizers import SGD
from fedjax_srp.algorithms.training import LocalTraining
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
    named_key,
)
from fedjax_srp.models.normalization import without_statistics
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import StepSize, part

# Weight of clients without gradients: its products with a model are no subnormal numbers.
LEAST_WEIGHT = 1e-18


class Measured(NamedTuple):
    """A model, and the sum of the squared norms of its batches' gradients."""

    params: SplitParams
    squares: Array


@part
class FedAS(OwnModel):
    """FedAS (Yang, Huang and Ye, 2024, Algorithm 1): the representation below the model's
    cut is shared, heads are personal, and clients are weighted by Fisher information.

    A participant first trains the shared representation for an epoch, so that its
    features approach the mean features that the client's last model has for each class,
    then this representation and its own head on its loss. Its weight in the mean is the
    trace of its Fisher information as in the authors' code: the squared norms of the
    gradients of batches at the trained model, summed over an epoch. The distance to mean
    features is an average over the examples of a batch; the authors' code sums the
    averages of each class.

    Evaluations: `own_model` (the default), the client's model as it last left it;
    `fine_tune`, its head trained further.

    Args:
        model: cut at its head; its labels are classes.
        training: of the clients; its weighting has no effect.
        alignment_step_size: of the plain steps that align the representation; 0.01 in the
            authors' code.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedAS(model).evaluations)
        ['own_model', 'fine_tune']
    """

    alignment_step_size: StepSize = 0.01

    init = GlobalModel.init
    prototypes = FedProto.prototypes

    @override
    def broadcast(self, server: FedAvgServerState, context: RoundContext) -> PyTree:
        return server.params.representation

    def distance(
        self, body: PyTree, own: Prototypes, x: Array, y: Array, key: Key | None
    ) -> Array:
        """Mean squared distance of features from the client's class mean, (batch,)."""
        is_label = self.one_hot(y, own.features.dtype)
        difference = self.features(body, x, key) - is_label @ own.features
        return jnp.mean(jnp.square(difference), axis=1)

    def measured_loss(
        self, measured: Measured, frozen: tuple[()], x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of each example under the measured model, (batch,)."""
        return self.loss(measured.params, frozen, x, y, key)

    @override
    def client(
        self,
        key: Key,
        body: PyTree,
        state: OwnModelState,
        examples: Examples,
        context: RoundContext,
    ):
        # theta <- SGD on mean |f(x; theta) - class mean of f(. ; theta_i)|^2, from theta
        aligning = LocalTraining(
            SGD(self.alignment_step_size),
            self.training.batch_size,
            epochs=1,
            work=jnp.minimum(context.work, 1),
        )
        own = self.prototypes(state.params, examples)
        aligned = local_sgd(
            named_key(key, "align"), self.distance, body, own, examples, aligning
        ).params
        # (theta_i, phi_i) <- local SGD on f_i, from (theta, phi_i)
        start = SplitParams(aligned, state.params.head)
        local = self.local_sgd(key, start, examples, context)
        message = SplitParams(local.params.representation, Uncharged(local.params.head))
        return ClientOutput(
            message,
            state=OwnModelState(local.params),
            weight=self.fisher_trace(key, local.params, examples),
            loss=local.loss,
        )

    def fisher_trace(self, key: Key, params: SplitParams, examples: Examples) -> Array:
        """Sum over batches of `|grad f_B(theta_i, phi_i)|^2` at a fixed model."""

        def squares(objective: Objective, measured: Measured, weights: Array) -> Measured:
            gradient = plain_gradient(objective, measured, weights).params
            square = square_norm(without_statistics(gradient))
            # The model stays where it is; the sum of squares takes a step of size 1.
            return Measured(jax.tree.map(jnp.zeros_like, params), -square)  # type: ignore[arg-type]

        zero = jnp.zeros((), dtype_of(params))
        end = local_sgd(
            named_key(key, "fisher"),
            self.measured_loss,
            Measured(params, zero),
            (),
            examples,
            LocalTraining(SGD(1.0), self.training.batch_size, epochs=1),
            gradient=squares,
        ).params
        return jnp.maximum(end.squares.astype(float), LEAST_WEIGHT)

    @override
    def server(
        self, key: Key, server: Any, mean: SplitParams, context: RoundContext
    ) -> FedAvgServerState:
        # theta <- sum_i F_i theta_i / sum_i F_i
        return FedAvgServerState(SplitParams(mean.representation, mean.head.value))
