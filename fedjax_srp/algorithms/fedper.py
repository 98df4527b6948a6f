"""FedPer: a shared representation and a personal head, trained together."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_srp.algorithms.fedrep import FedRepClientState, FedRepMessage, fedrep
from fedjax_srp.algorithms.local import Optimizer, client_weight, example_loss, local_sgd, local_training
from fedjax_srp.base import (
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
    named_key,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


@recorded
def fedper(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedPer (Arivazhagan et al., 2019, Algorithms 1 and 2): the representation below the model's cut (the base layers)
    is shared, the head above it (the personalization layers) is personal.

    FedRep with joint steps: every local step moves head and representation at once, from the same point, so both take
    equally many. The rest is `fedrep`'s, its evaluations too: `fine_tune` (the default), the last round's mean head
    trained on the client for `fine_tune_epochs` under the current representation; `own_head`, the client's head as it
    last left it (what the FedPer and FedRep papers judge); `own_or_mean_head`, the same with the mean head for clients
    that have never taken part.

    Args:
        model: cut at the first personal layer.
        optimizer: of both parts, afresh in every round; default SGD with step size 0.01 (FedRep, appendix).
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs of the head before a client is judged by `fine_tune`.
        client_weighting: "uniform" or "num_examples" (the FedPer paper; FedRep's code).
        fine_tune_optimizer: of the head in `fine_tune`; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.fedper(model).evaluations)
        ['fine_tune', 'own_head', 'own_or_mean_head']
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    base = fedrep(
        model,
        optimizer,
        batch_size,
        fine_tune_epochs=fine_tune_epochs,
        client_weighting=client_weighting,
        fine_tune_optimizer=fine_tune_optimizer,
    )
    loss = example_loss(model)

    def client(
        key: Key, representation: PyTree, state: FedRepClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # (phi_i, h_i) <- local SGD on f_i(h_i, phi_i), from (phi, h_i)
        start, in_round = SplitParams(representation, state.head), training.in_round(context)
        representation, head = local_sgd(named_key(key, "local"), loss, start, (), examples, in_round)
        message = FedRepMessage(representation, Uncharged(head))
        weight = client_weight(client_weighting, examples)
        return ClientOutput(message, FedRepClientState(head, jnp.bool_(True)), weight)

    return base._replace(name="fedper", round=base.round._replace(client=client))
