"""Ditto: a global model by FedAvg, and a personal model of every client near it."""

from __future__ import annotations

from typing_extensions import override

from fedjax_srp.algorithms.examples import GlobalAndPersonalModel, Penalty, PersonalState
from fedjax_srp.algorithms.fedprox import proximal_gradient
from fedjax_srp.algorithms.local import total_loss
from fedjax_srp.base import ClientOutput, Examples, Key, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class Ditto(GlobalAndPersonalModel):
    """Ditto (Li et al., 2021, Algorithm 1 with FedAvg as its solver of the global model).

    The global model is that of `FedAvg`, whatever the penalty. In addition every client
    keeps its own model, trained on the same batches and drawn towards the downloaded
    global model; without a penalty it is trained on the client alone. Only the global
    model is sent. A participant takes twice as many steps as in `FedAvg`.

    Momentum includes the penalty's gradient; the code of FedRep's authors adds it after
    momentum.

    Evaluations: `own_model` (the default), the personal model; `global`, `fine_tune` (its
    head) and `fine_tune_all`, as in `FedAvg`.

    Args:
        training: of each model.
        penalty: lambda, of `(lambda / 2) |v_i - w|^2`; 1 in the code of FedRep's authors.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.Ditto(model, penalty=0.1).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    penalty: Penalty = 1.0

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: PersonalState,
        examples: Examples,
        context: RoundContext,
    ):
        # One key for both models: they train on the same batches, those of FedAvg.
        # w_i <- local SGD on f_i from w
        shared = self.local_sgd(key, params, examples, context)
        # v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - w)), step after step
        towards_global = proximal_gradient(self.penalty, params)
        own = self.local_sgd(key, state.own, examples, context, gradient=towards_global)
        return ClientOutput(
            message=shared.params,
            state=PersonalState(own.params),
            weight=self.training.weight(examples),
            loss=total_loss(shared.loss, own.loss),
        )
