"""FedProx: FedAvg whose clients are held near the global model."""

from __future__ import annotations

import jax

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms.fedavg import fedavg
from fedjax_srp.algorithms.local import (
    Objective,
    Optimizer,
    client_weight,
    example_loss,
    local_sgd,
    local_training,
    plain_gradient,
)
from fedjax_srp.base import Array, ClientOutput, Examples, FederatedAlgorithm, Key, PyTree, RoundContext, named_key
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


@recorded
def fedprox(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    mu: float | Array = 0.1,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    evaluation: str = "global",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedProx (Li et al., 2020, Algorithm 2): every part of the model is shared, nothing is personal.

    A client descends `f_i(w_i) + (mu / 2) |w_i - w|^2` from the global model w. The paper asks for a
    gamma_i-inexact minimum; here, as in its experiments, that is local SGD, and a policy that gives every client its
    own units of work makes gamma_i differ. With mu = 0 this is `fedavg`. The term passes through the optimizer, so
    through its momentum.

    Evaluations: those of `fedavg`; FedProx+FT of the FedRep paper is `evaluation="fine_tune"`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round; default SGD with step size 0.01.
        mu: of the proximal term; the paper tunes it in {0.001, 0.01, 0.1, 1}, 0 for none.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs of fine-tuning before a client is judged.
        client_weighting: "uniform" (paper, which draws devices in proportion to their examples; policies here draw
            them alike) or "num_examples" (FedRep's code).
        evaluation: the default one.
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.fedprox(model, mu=0.01).evaluations)
        ['global', 'fine_tune', 'fine_tune_all']
    """
    check_numbers("mu", mu, "give 0 for none, or e.g. 0.1", max_ndim=0)
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
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
        def proximal(objective: Objective, local: PyTree, weights: Array) -> PyTree:
            # grad h_i(w_i) = grad f_i(w_i) + mu (w_i - w)
            gradient = plain_gradient(objective, local, weights)
            return jax.tree.map(lambda g, w_i, w: g + mu * (w_i - w), gradient, local, params)

        # w_i <- local SGD on h_i, from w
        in_round = training.in_round(context)
        local = local_sgd(named_key(key, "local"), loss, params, (), examples, in_round, gradient=proximal)
        return ClientOutput(local, weight=client_weight(client_weighting, examples))

    return base._replace(name="fedprox", round=base.round._replace(client=client))
