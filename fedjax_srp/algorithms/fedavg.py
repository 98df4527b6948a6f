"""FedAvg: one global model."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    FedAvgServerState,
    GlobalModel,
    gradient_message,
)
from fedjax_srp.base import (
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    Personalize,
    RoundContext,
)
from fedjax_srp.parts.part import part

__all__ = ["FedAvg", "FedAvgServerState"]

OfGlobalModel = Literal["global", "fine_tune", "fine_tune_all"]


@part
class FedAvg(GlobalModel):
    """FedAvg (McMahan et al., 2017): every part of the model is shared, nothing is
    personal.

    Evaluations: `global`, the model as it is; `fine_tune`, its head (the last layer, for
    a model cut at "out") trained on the client for `fine_tune_epochs`, as in FedAvg-FT
    and FLANP-FT of the SRPFL paper's code; `fine_tune_all`, all its layers trained.

    Args:
        training: of the clients; weighting is "uniform" in the pseudo-code of SRPFL,
            FedRep and FLANP, and "num_examples" in their code, in McMahan et al., and in
            eq. (3) of the paper on FedAvg as a representation learner.
        fine_tune_optimizer: of both kinds of fine-tuning; default that of training.
            SRPFL's code has momentum 0.5 there and none in training.
        evaluation: the default one. In a subclass that adds evaluations of other names
            it is the first of these, unless you choose another than "global".

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedAvg(model, srp.Training(epochs=5)).name
        'fedavg'
    """

    _: dataclasses.KW_ONLY
    evaluation: OfGlobalModel = "global"

    @property
    @override
    def evaluations(self) -> dict[str, Personalize]:
        evaluations = super().evaluations
        default = self.evaluation
        added = [name for name in evaluations if name not in get_args(OfGlobalModel)]
        if added and default == type(self).evaluation:
            default = added[0]
        first = evaluations.pop(default)
        return {default: first} | evaluations

    @override
    def client(
        self, key: Key, params: Any, state: Any, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # w_i <- local SGD from w
        local = self.local_sgd(key, params, examples, context)
        return ClientOutput(
            local.params, weight=self.training.weight(examples), loss=local.loss
        )

    @property
    @override
    def gradient(self) -> ClientFunction | None:
        return self.loss_gradient

    def loss_gradient(
        self, key: Key, params: Any, state: Any, examples: Examples, context: RoundContext
    ):
        """Gradient of the client's loss at the global model."""
        return gradient_message(self.loss, params, (), examples, self.training, context)
