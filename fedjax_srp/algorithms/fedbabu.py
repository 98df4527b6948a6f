"""FedBABU: the body is trained and shared under the initial head."""

from __future__ import annotations

from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    FedAvgServerState,
    GlobalModel,
    gradient_message,
)
from fedjax_srp.algorithms.local import ModelLoss, fit_representation
from fedjax_srp.base import (
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class FedBABU(GlobalModel):
    """FedBABU (Oh, Kim and Yun, 2022, Algorithm 1): the representation below the model's
    cut is shared and trained under the initial head; heads are only trained in
    evaluations.

    Evaluations: `fine_tune_all` (the default), all layers trained on the client, as in
    the paper, which takes 5 epochs; `fine_tune`, only the head trained; `global`, the
    shared body under the initial head.

    Args:
        model: cut at the first layer of the head, the last layer in the paper. Put
            BatchNorm below the cut: in a head it normalises by the batch while the body
            is trained, but its running statistics, which evaluations use, keep their
            initial values until they are fine-tuned.
        training: of the body; the paper weighs clients by their examples and has momentum
            0.9.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedBABU(model).evaluations)
        ['fine_tune_all', 'global', 'fine_tune']
    """

    fine_tune_all = GlobalModel.fine_tune_all  # the first evaluation

    @override
    def broadcast(self, server: FedAvgServerState, context: RoundContext) -> SplitParams:
        body, head = server.params
        return SplitParams(body, Uncharged(head))  # clients already have the head

    @override
    def client(
        self,
        key: Key,
        down: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        # theta_i <- local SGD on f_i(theta_i, initial head), from theta
        now = self.training.in_round(context)
        local = fit_representation(
            key, self.model, down.representation, down.head.value, examples, now
        )
        return ClientOutput(
            local.params, weight=self.training.weight(examples), loss=local.loss
        )

    @override
    def server(
        self, key: Key, server: FedAvgServerState, mean: PyTree, context: RoundContext
    ) -> FedAvgServerState:
        # theta <- sum_i p_i theta_i
        return FedAvgServerState(SplitParams(mean, server.params.head))

    @property
    @override
    def gradient(self) -> ClientFunction:
        return self.loss_gradient

    def loss_gradient(
        self,
        key: Key,
        down: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        """Gradient of the client's loss in the body, under the initial head."""
        loss = ModelLoss(self.model, trains="representation")
        return gradient_message(
            loss, down.representation, down.head.value, examples, self.training, context
        )
