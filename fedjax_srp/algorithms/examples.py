"""Bases of algorithms on labelled examples: fields, losses, evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.local import (
    Gradient,
    Loss,
    Trained,
    as_stepped,
    example_loss,
    full_gradient,
    local_sgd,
    plain_gradient,
    with_tuned_head,
)
from fedjax_srp.algorithms.optimizers import SGD, Given, optional_optimizer
from fedjax_srp.algorithms.training import LocalTraining, Training
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    JobsBy,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.normalization import has_statistics
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.parts.part import AtLeast, field, part, undefined
from fedjax_srp.xla.backend import platform
from fedjax_srp.xla.loops import sequential

Penalty = Annotated[float, AtLeast(0), "give 0 for none, or e.g. 0.1"]


@part
class ExampleAlgorithm(FederatedAlgorithm):
    """An algorithm on labelled examples.

    Args:
        model: the model to train, cut into a representation and a head; if no part is
            personal, the cut only matters to `fine_tune`.
        training: local training in a round.
        fine_tune_epochs: epochs of fine-tuning before a client is evaluated.
        fine_tune_optimizer: of fine-tuning; None: that of training.

    Raises:
        ValueError: a field is out of range; in `init`, labels or examples do not fit the
            model.
    """

    # True: `training.weighting` must be "uniform"
    requires_uniform_weighting: ClassVar[bool] = False
    # False: BatchNorm is refused, since its variances could become negative, or those of a
    # narrower model
    supports_batch_norm: ClassVar[bool] = True

    model: SplitModel
    training: Training = Training()
    _: dataclasses.KW_ONLY
    fine_tune_epochs: Annotated[int, AtLeast(0)] = 10
    fine_tune_optimizer: Given | None = field(
        converter=partial(optional_optimizer, "fine_tune_optimizer"), default=None
    )

    def __post_init__(self) -> None:
        _ = self.tuning  # refuses an optimizer that depends on the round
        if self.requires_uniform_weighting and self.training.weighting != "uniform":
            raise ValueError(
                f"training.weighting={self.training.weighting!r}: {self.name} needs "
                "weighting='uniform'"
            )

    @property
    def tuning(self) -> LocalTraining:
        """Training before an evaluation."""
        return self.training.alone(
            self.fine_tune_optimizer, self.fine_tune_epochs, "fine_tune_optimizer"
        )

    def init_params(self, key: Key, data: Any) -> SplitParams:
        """The parameters before the first round."""
        self.model.check_fits(data)
        params = self.model.init(key)
        if not self.supports_batch_norm and has_statistics(params):
            raise ValueError(
                f"model {self.model.name!r} has BatchNorm, whose running statistics "
                f"{self.name} does not keep valid; use GroupNorm, e.g. norm='group' of a "
                "resnet18"
            )
        return params

    @property
    def loss(self) -> Loss:
        """The loss of each example, `(params, frozen, x, y, key) -> (batch,)`."""
        return example_loss(self.model)

    def training_in(self, context: RoundContext) -> LocalTraining:
        """The local training of a round, by `training`."""
        return self.training.in_round(context)

    def local_sgd(
        self,
        key: Key,
        params: PyTree,
        examples: Examples,
        context: RoundContext,
        *,
        loss: Loss | None = None,
        frozen: PyTree = (),
        gradient: Gradient = plain_gradient,
        after_step: Callable[[PyTree], PyTree] = as_stepped,
    ) -> Trained:
        """Local SGD of one client in a round, by `training`, see `local.local_sgd`.

        The key has the purpose "local", so all methods draw the same batches.

        Args:
            key: of the client.
            params: the parameters to train.
            examples: of the client.
            context: of the round.
            loss: `(params, frozen, x, y, key) -> (batch,)`; None: that of the model.
            frozen: passed to the loss.
            gradient: replaces the gradient of the loss in each step.
            after_step: a projection after each step.
        """
        return local_sgd(
            named_key(key, "local"),
            self.loss if loss is None else loss,
            params,
            frozen,
            examples,
            self.training_in(context),
            gradient=gradient,
            after_step=after_step,
        )

    def features(self, representation: PyTree, x: Array, key: Key | None = None) -> Array:
        """The features at the model's cut, (batch, num_features).

        Raises a ValueError for LoRA, which has none.
        """
        features = self.model.represent(representation, x, key)
        if not isinstance(features, Array):
            raise ValueError(
                f"{self.name} needs features, but model {self.model.name!r} has none; "
                "choose another model"
            )
        return features.reshape(x.shape[0], -1)

    def one_hot(self, y: Array, dtype: Any) -> Array:
        """Return (batch, num_classes) flags of classes y.

        Raises a ValueError for labels that are no classes.
        """
        reason = None
        if self.model.is_regression:
            reason = f"model {self.model.name!r} takes numbers"
        elif y.ndim != 1:
            reason = f"the labels are {y.dtype} of shape {y.shape[1:]} each"
        elif not jnp.issubdtype(y.dtype, jnp.integer):
            reason = f"the labels are {y.dtype}"
        if reason is not None:
            raise ValueError(
                f"{self.name} needs class labels, but {reason}; give a classifier "
                "integers, one for each example, or choose e.g. fedavg"
            )
        return jax.nn.one_hot(y, self.model.num_classes, dtype=dtype)

    def members(self, examples: Examples, dtype: Any) -> Array:
        """Return (max_examples, num_classes) flags of classes; none for padding."""
        return jnp.where(examples.valid[:, None], self.one_hot(examples.y, dtype), 0)


class FedAvgServerState(NamedTuple):
    """The global model w."""

    params: SplitParams


@part
class GlobalModel(ExampleAlgorithm):
    """An algorithm whose server keeps a whole model, the field `params` of its state.

    By default clients download that model, and the mean message is the new one, as in
    `FedAvg`.
    """

    @override
    def init(self, key: Key, data: Any) -> Any:
        return FedAvgServerState(self.init_params(key, data))

    @override
    def broadcast(self, server: Any, context: RoundContext) -> Any:
        return server.params

    @override
    def server(self, key: Key, server: Any, mean: Any, context: RoundContext) -> Any:
        # w <- sum_i p_i w_i
        return FedAvgServerState(mean)

    @evaluation("global")
    def global_model(self, key: Key, server: Any, state: Any, examples: Examples):
        """The global model as it is."""
        return Partial(self.model.logits, server.params)

    @evaluation
    def fine_tune(self, key: Key, server: Any, state: Any, examples: Examples):
        """The global model, its head (the last layer) trained on the client."""
        return with_tuned_head(key, self.model, server.params, examples, self.tuning)

    @evaluation
    def fine_tune_all(self, key: Key, server: Any, state: Any, examples: Examples):
        """The global model, all layers trained on the client."""
        trained = local_sgd(
            named_key(key, "local"), self.loss, server.params, (), examples, self.tuning
        )
        return Partial(self.model.logits, trained.params)


@part
class ModelsOfStages(GlobalModel):
    """An algorithm whose clients train from the model with which the stage
    `context.stage` began, `sent` in the server's state.

    For policies whose stages are jobs that overlap. A subclass defines `of_params`, the
    state in which every stage has these parameters, and `server`.
    """

    asynchronous: ClassVar[bool] = True
    jobs_by: ClassVar[JobsBy] = "stage"

    def of_params(self, params: SplitParams) -> Any:
        """The state in which every stage has these parameters."""
        undefined(self.of_params)

    @property
    @override
    def gradient(self) -> None:
        return None  # jobs are no stages of a growing cohort

    @override
    def init(self, key: Key, data: Any) -> Any:
        return self.of_params(self.init_params(key, data))

    @override
    def with_params(self, server: Any, params: SplitParams) -> Any:
        return self.of_params(params)

    @override
    def broadcast(self, server: Any, context: RoundContext) -> SplitParams:
        return jax.tree.map(lambda w: w[context.stage], server.sent)


def stacked(params: PyTree, number: int) -> PyTree:
    """Repeat parameters so many times: leaves (number, ...)."""
    return jax.tree.map(lambda w: jnp.repeat(w[None], number, axis=0), params)


def with_model(models: PyTree, stage: Array, params: PyTree) -> PyTree:
    """Replace the model of a stage."""
    return jax.tree.map(lambda old, w: old.at[stage].set(w), models, params)


class PersonalState(NamedTuple):
    """A client's personal model, beside the global one."""

    own: SplitParams


@part
class GlobalAndPersonalModel(GlobalModel):
    """An algorithm with a global model, and a personal one for every client.

    Personal models start as the global one.
    """

    @override
    def init_client(self, key: Key, server: Any, examples: Examples) -> PersonalState:
        return PersonalState(server.params)

    @evaluation
    def own_model(self, key: Key, server: Any, state: PersonalState, examples: Examples):
        """The client's personal model, as it last left it."""
        return Partial(self.model.logits, state.own)


class OwnModelState(NamedTuple):
    """A client's model w_i."""

    params: SplitParams


@part
class OwnModel(ExampleAlgorithm):
    """An algorithm whose clients keep a whole model each.

    They start as `params` of the server's state.
    """

    @override
    def init_client(self, key: Key, server: Any, examples: Examples) -> OwnModelState:
        return OwnModelState(server.params)

    @evaluation
    def own_model(self, key: Key, server: Any, state: Any, examples: Examples):
        """The client's own model, as it last left it."""
        return Partial(self.model.logits, state.params)

    @evaluation
    def fine_tune(self, key: Key, server: Any, state: Any, examples: Examples):
        """The client's own model, its head trained further on the client."""
        return with_tuned_head(key, self.model, state.params, examples, self.tuning)


def mean_of_all(last: PyTree, change: PyTree, context: RoundContext) -> PyTree:
    """The mean over ALL clients of a value that each keeps, after a round.

    Args:
        last: the mean before the round.
        change: the mean change of the participants' values.
        context: of the round.
    """
    # c <- c + (1 / N) sum over the participants of the change of c_i
    share = context.cohort_size.astype(float) / context.num_clients
    return jax.tree.map(lambda c, d: c + share.astype(c.dtype) * d, last, change)


def gradient_message(
    loss: Loss,
    params: PyTree,
    personal: PyTree,
    examples: Examples,
    training: Training,
    context: RoundContext,
) -> ClientOutput:
    """Result of a `gradient`: grad L_i(w), over all of the client's examples.

    L_i is the objective of local SGD and includes the penalty of its weight decay; for
    optimizers other than `SGD` it is the mean loss. The model is in evaluation mode,
    without dropout and augmentation.
    """

    def compute(params: PyTree, personal: PyTree, examples: Examples) -> PyTree:
        return full_gradient(loss, params, personal, examples)

    if platform() == "cpu":
        # One client after the other: all of its examples then stay in the cache.
        compute = sequential(compute)
    gradient = compute(params, personal, examples)
    optimizer = training.in_round(context).optimizer
    if isinstance(optimizer, SGD) and optimizer.weight_decay is not None:
        decay = optimizer.weight_decay

        def decayed(g: Array, w: Array) -> Array:
            if w.ndim <= 1:
                return g
            return g + (decay * w).astype(g.dtype)

        gradient = jax.tree.map(decayed, gradient, params)
    return ClientOutput(gradient, weight=training.weight(examples))
