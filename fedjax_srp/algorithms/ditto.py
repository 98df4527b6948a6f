"""Ditto: a global model by FedAvg, and a personal model of every client that is held near it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms._evaluations import global_evaluations
from fedjax_srp.algorithms.local import (
    Objective,
    Optimizer,
    check_weighting,
    client_weight,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
    plain_gradient,
)
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    Phase,
    RoundContext,
    named_key,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class DittoServerState(NamedTuple):
    """The global model w."""

    params: SplitParams


class DittoClientState(NamedTuple):
    """The personal model v_i."""

    own: SplitParams


@recorded
def ditto(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    penalty: float | Array = 1.0,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """Ditto (Li et al., 2021, Algorithm 1 with FedAvg as its solver of the global model).

    The global model is that of `fedavg`, whatever the penalty. Beside it every client keeps a model of its own, trained
    as long on the same batches and drawn towards the global model that the client was handed; without a penalty it is
    trained on the client alone. Only the global model travels. A participant works twice as much as in `fedavg`.

    Momentum takes the penalty's gradient in, as that of any loss; the code of FedRep's authors adds it after momentum.

    Evaluations: `own_model` (the default), the personal model; `global`, `fine_tune` (its head) and `fine_tune_all`, as
    in `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of both models, afresh in every round; default SGD with step size 0.01.
        penalty: lambda, of `(lambda / 2) |v_i - w|^2`; 1 in the code of FedRep's authors.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: of each model, over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs before a client is judged by `fine_tune` and `fine_tune_all`.
        client_weighting: "uniform" or "num_examples".
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.ditto(model, penalty=0.1).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    check_numbers("penalty", penalty, "give 0 for none, or e.g. 1.0", max_ndim=0)

    loss = example_loss(model)

    def init(key: Key, data: Any) -> DittoServerState:
        model.check_fits(data)
        return DittoServerState(model.init(key))

    def client(
        key: Key, params: SplitParams, state: DittoClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        def towards_global(objective: Objective, own: SplitParams, weights: Array) -> SplitParams:
            # grad f_i(v_i) + lambda (v_i - w)
            gradient = plain_gradient(objective, own, weights)
            return jax.tree.map(lambda g, v, w: g + penalty * (v - w), gradient, own, params)

        # One key for both models: they see the same batches, which are those of fedavg and of local training.
        key_local, now = named_key(key, "local"), training.in_round(context)
        # w_i <- local SGD on f_i from w
        shared = local_sgd(key_local, loss, params, (), examples, now)
        # v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - w)), step after step
        own = local_sgd(key_local, loss, state.own, (), examples, now, gradient=towards_global)
        return ClientOutput(shared, DittoClientState(own), client_weight(client_weighting, examples))

    def server(key: Key, state: DittoServerState, mean: SplitParams, context: RoundContext) -> DittoServerState:
        # w <- sum_i p_i w_i
        return DittoServerState(mean)

    def own_model(key: Key, server: DittoServerState, state: DittoClientState, examples: Examples):
        """The client's personal model, as it last left it."""
        return lambda x: model.logits(state.own, x)

    return FederatedAlgorithm(
        name="ditto",
        init=init,
        init_client=lambda key, server, examples: DittoClientState(server.params),
        round=Phase(lambda server, context: server.params, client, server),
        evaluations={"own_model": own_model} | global_evaluations(model, tuning),
    )
