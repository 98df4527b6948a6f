"""FedAvg: one global model."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedjax_srp.algorithms._evaluations import global_evaluations
from fedjax_srp.algorithms._gradient import global_gradient
from fedjax_srp.algorithms.local import (
    Optimizer,
    check_weighting,
    client_weight,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
)
from fedjax_srp.base import (
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


class FedAvgServerState(NamedTuple):
    """The global model w."""

    params: SplitParams


@recorded
def fedavg(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    evaluation: str = "global",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedAvg (McMahan et al., 2017): every part of the model is shared, nothing is personal.

    Evaluations: `global`, the model as it is; `fine_tune`, the head (the last layer, for a model cut at "out") trained
    on the client for `fine_tune_epochs`, as in FedAvg-FT and FLANP-FT of the SRPFL paper's code; `fine_tune_all`, all
    layers.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round; default SGD with step size 0.01 (SRPFL, section 5).
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs of fine-tuning before a client is judged.
        client_weighting: "uniform" (papers' pseudo-code) or "num_examples" (their code; McMahan et al.).
        evaluation: the default one.
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`. SRPFL's code has momentum 0.5 there
            and none in training.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.fedavg(model, local_epochs=5).name
        'fedavg'
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)

    loss = example_loss(model)

    def init(key: Key, data: Any) -> FedAvgServerState:
        model.check_fits(data)
        return FedAvgServerState(model.init(key))

    def client(key: Key, params: SplitParams, state: tuple, examples: Examples, context: RoundContext) -> ClientOutput:
        # w_i <- local SGD from w
        local = local_sgd(named_key(key, "local"), loss, params, (), examples, training.in_round(context))
        return ClientOutput(local, weight=client_weight(client_weighting, examples))

    def server(key: Key, state: FedAvgServerState, mean: SplitParams, context: RoundContext) -> FedAvgServerState:
        # w <- sum_i p_i w_i
        return FedAvgServerState(mean)

    return FederatedAlgorithm(
        name="fedavg",
        init=init,
        init_client=lambda key, server, examples: (),
        round=Phase(lambda server, context: server.params, client, server),
        evaluations=global_evaluations(model, tuning, evaluation),
        gradient=global_gradient(loss, training, client_weighting),
    )
