"""Ditto: a global model by FedAvg, and a personal model of every client near it."""

from __future__ import annotations

from typing import Annotated

import jax

from fedjax_srp.algorithms.examples import GlobalAndPersonalModel, PersonalState
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import Objective, local_sgd, plain_gradient, total_loss
from fedjax_srp.base import Array, ClientOutput, Examples, Key, RoundContext, named_key
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, part


@part
class Ditto(GlobalAndPersonalModel):
    """Ditto (Li et al., 2021, Algorithm 1 with FedAvg as its solver of the global model).

    The global model is that of `FedAvg`, whatever the penalty. In addition every client keeps its own model, trained on
    the same batches and drawn towards the downloaded global model; without a penalty it is trained on the client alone.
    Only the global model is sent. A participant takes twice as many steps as in `FedAvg`.

    Momentum includes the penalty's gradient; the code of FedRep's authors adds it after momentum.

    Evaluations: `own_model` (the default), the personal model; `global`, `fine_tune` (its head) and `fine_tune_all`, as
    in `FedAvg`.

    Args:
        training: of each model.
        penalty: lambda, of `(lambda / 2) |v_i - w|^2`; 1 in the code of FedRep's authors.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.Ditto(model, penalty=0.1).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    penalty: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 1.0"] = 1.0

    init, broadcast, server = (
        FedAvg.init,
        FedAvg.broadcast,
        FedAvg.server,
    )  # of the global model

    def client(
        self,
        key: Key,
        params: SplitParams,
        state: PersonalState,
        examples: Examples,
        context: RoundContext,
    ):
        """Local SGD, of the global model and of the client's own."""

        def towards_global(
            objective: Objective, own: SplitParams, weights: Array
        ) -> SplitParams:
            # grad f_i(v_i) + lambda (v_i - w)
            gradient = plain_gradient(objective, own, weights)
            return jax.tree.map(
                lambda g, v, w: g + self.penalty * (v - w), gradient, own, params
            )

        # One key for both models: they train on the same batches, which are those of FedAvg and of local training.
        key_local, now = named_key(key, "local"), self.training.in_round(context)
        # w_i <- local SGD on f_i from w
        shared = local_sgd(key_local, self.loss, params, (), examples, now)
        # v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - w)), step after step
        own = local_sgd(
            key_local, self.loss, state.own, (), examples, now, gradient=towards_global
        )
        weight, loss = self.training.weight(examples), total_loss(shared.loss, own.loss)
        return ClientOutput(shared.params, PersonalState(own.params), weight, loss=loss)
