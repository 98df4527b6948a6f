"""Bases of algorithms on labelled examples: fields, the loss, and evaluations of a global or personal model."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.local import (
    Loss,
    example_loss,
    full_gradient,
    local_sgd,
    with_tuned_head,
)
from fedjax_srp.algorithms.optimizers import SGD, Given, optional_optimizer
from fedjax_srp.algorithms.training import LocalTraining, Training
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.normalization import has_statistics
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.parts.part import AtLeast, field, part
from fedjax_srp.xla.backend import platform
from fedjax_srp.xla.loops import sequential


@part
class ExampleAlgorithm(FederatedAlgorithm):
    """An algorithm on labelled examples.

    Args:
        model: the model to train, cut into a representation and a head; if no part is personal, the cut only matters to
            `fine_tune`.
        training: local training in a round.
        fine_tune_epochs: epochs of fine-tuning before a client is evaluated.
        fine_tune_optimizer: of fine-tuning; None: that of training.

    Raises:
        ValueError: a field is out of range; in `init`, labels or examples do not fit the model.
    """

    requires_uniform_weighting: ClassVar[bool] = (
        False  # True: `training.weighting` must be "uniform"
    )
    supports_batch_norm: ClassVar[bool] = (
        True  # False: BatchNorm is refused, since its variances could become negative
    )

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
                f"training.weighting={self.training.weighting!r}: {self.name} needs weighting='uniform'"
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
                f"model {self.model.name!r} has BatchNorm, whose variances {self.name} could make negative; use "
                "GroupNorm, e.g. norm='group' of a resnet18"
            )
        return params

    @property
    def loss(self) -> Loss:
        """The loss of each example under the whole model, `(params, frozen, x, y, key) -> (batch,)`."""
        return example_loss(self.model)

    def features(self, representation: PyTree, x: Array, key: Key | None = None) -> Array:
        """The features at the model's cut, (batch, num_features); raise a ValueError for LoRA, which has none."""
        features = self.model.represent(representation, x, key)
        if not isinstance(features, Array):
            raise ValueError(
                f"{self.name} needs features, but model {self.model.name!r} has none; choose another model"
            )
        return features.reshape(x.shape[0], -1)

    def one_hot(self, y: Array, dtype: Any) -> Array:
        """Return (batch, num_classes) flags of classes y; raise a ValueError for labels that are no classes."""
        if (
            self.model.is_regression
            or y.ndim != 1
            or not jnp.issubdtype(y.dtype, jnp.integer)
        ):
            found = f"the labels are {y.dtype}" + (
                f" of shape {y.shape[1:]} each" if y.ndim > 1 else ""
            )
            found = (
                f"model {self.model.name!r} takes numbers"
                if self.model.is_regression
                else found
            )
            raise ValueError(
                f"{self.name} needs class labels, but {found}; give a classifier integers, one for each example, "
                "or choose e.g. fedavg"
            )
        return jax.nn.one_hot(y, self.model.num_classes, dtype=dtype)


@part
class GlobalModel(ExampleAlgorithm):
    """An algorithm whose server keeps a whole model, the field `params` of its state."""

    @evaluation("global")
    def global_model(self, key: Key, server: Any, state: Any, examples: Examples):
        """The global model as it is."""
        return lambda x: self.model.logits(server.params, x)

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
        return lambda x: self.model.logits(trained.params, x)


class PersonalState(NamedTuple):
    """A client's personal model, beside the global one."""

    own: SplitParams


@part
class GlobalAndPersonalModel(GlobalModel):
    """An algorithm with a global model, and a personal one of every client, which starts as the global one."""

    def init_client(self, key: Key, server: Any, examples: Examples) -> PersonalState:
        """The initial model."""
        return PersonalState(server.params)

    @evaluation
    def own_model(self, key: Key, server: Any, state: PersonalState, examples: Examples):
        """The client's personal model, as it last left it."""
        return lambda x: self.model.logits(state.own, x)


class OwnModelState(NamedTuple):
    """A client's model w_i."""

    params: SplitParams


@part
class OwnModel(ExampleAlgorithm):
    """An algorithm whose clients keep a whole model each, at first `params` of the server's state."""

    def init_client(self, key: Key, server: Any, examples: Examples) -> OwnModelState:
        """The initial model."""
        return OwnModelState(server.params)

    @evaluation
    def own_model(self, key: Key, server: Any, state: Any, examples: Examples):
        """The client's own model, as it last left it."""
        return lambda x: self.model.logits(state.params, x)

    @evaluation
    def fine_tune(self, key: Key, server: Any, state: Any, examples: Examples):
        """The client's own model, its head trained further on the client."""
        return with_tuned_head(key, self.model, state.params, examples, self.tuning)


def gradient_message(
    loss: Loss,
    params: PyTree,
    personal: PyTree,
    examples: Examples,
    training: Training,
    context: RoundContext,
) -> ClientOutput:
    """Result of a `gradient`: grad L_i(w), over all of the client's examples.

    L_i is the objective of local SGD and includes the penalty of its weight decay; for optimizers other than `SGD` it
    is the mean loss. The model is in evaluation mode, without dropout and augmentation.
    """

    def compute(params: PyTree, personal: PyTree, examples: Examples) -> PyTree:
        return full_gradient(loss, params, personal, examples)

    # One client after the other on a CPU: all of its examples then stay in the cache.
    gradient = (sequential(compute) if platform() == "cpu" else compute)(
        params, personal, examples
    )
    optimizer = training.in_round(context).optimizer
    decay = optimizer.weight_decay if isinstance(optimizer, SGD) else None
    if decay is not None:
        gradient = jax.tree.map(
            lambda g, w: g + (decay * w).astype(g.dtype) if w.ndim > 1 else g,
            gradient,
            params,
        )
    return ClientOutput(gradient, weight=training.weight(examples))
