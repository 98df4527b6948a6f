"""FedNova: FedAvg for clients that take unequal numbers of steps."""

from __future__ import annotations

from fedjax_srp.algorithms._normalised import (
    NormalisedMessage,
    check_equal_steps,
    gradient_weights,
    mean_direction,
    moved,
    normalised_output,
)
from fedjax_srp.algorithms.fedavg import FedAvgServerState, fedavg
from fedjax_srp.algorithms.local import Optimizer, client_weight, example_loss, local_sgd, local_training
from fedjax_srp.base import ClientOutput, Examples, FederatedAlgorithm, Key, Phase, RoundContext, named_key
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


@recorded
def fednova(
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
    """FedNova (Wang et al., 2020): every part of the model is shared, nothing is personal.

    Where client i takes tau_i steps, FedAvg's mean leans towards those who take many. Here the server averages
    d_i = (w - w_i) / tau_i and moves by the mean tau times as much. Who takes how many steps is the policy's affair
    (`participation.partial_work`: what fits the clock) and that of the data, an epoch of more examples having more
    steps. With equal numbers this is `fedavg`.

    Under momentum tau_i is ||a_i||_1, the sum of the weights that gradients get in the move. Other optimizers than
    `srp.algorithms.sgd` do not tell their momentum and schedule, and their steps are counted.

    Evaluations: those of `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round, its step size the same in all of a round's steps; default
            SGD with step size 0.01.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None); with
            `local_steps=1` a unit of work is one step.
        fine_tune_epochs: epochs of fine-tuning before a client is judged.
        client_weighting: p_i, "uniform" (FLANP) or "num_examples" (paper).
        evaluation: the default one.
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, `srp.algorithms.sgd` with a schedule over local steps, or labels and
            examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.fednova(model, local_epochs=None, local_steps=1).name
        'fednova'
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    check_equal_steps(training)
    base = fedavg(
        model,
        optimizer,
        batch_size,
        local_epochs,
        local_steps,
        fine_tune_epochs,
        client_weighting,
        evaluation,
        fine_tune_optimizer,
    )
    loss = example_loss(model)

    def client(key: Key, params: SplitParams, state: tuple, examples: Examples, context: RoundContext) -> ClientOutput:
        # w_i <- local SGD from w
        in_round = training.in_round(context)
        local = local_sgd(named_key(key, "local"), loss, params, (), examples, in_round)
        # eta d_i = (w - w_i) / ||a_i||_1
        weight = client_weight(client_weighting, examples)
        return normalised_output(params, local, gradient_weights(in_round, examples), weight)

    def server(key: Key, state: FedAvgServerState, mean: NormalisedMessage, context: RoundContext) -> FedAvgServerState:
        # w <- w - tau_eff sum_i p_i eta d_i, tau_eff = sum_i p_i ||a_i||_1
        return FedAvgServerState(moved(state.params, mean_direction(mean), mean.length))

    return base._replace(name="fednova", round=Phase(base.round.broadcast, client, server))
