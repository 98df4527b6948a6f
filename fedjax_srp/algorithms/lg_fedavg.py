"""LG-FedAvg: a personal representation, a shared head."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.local import (
    Optimizer,
    check_weighting,
    client_weight,
    example_loss,
    fine_tuning,
    fit_representation,
    local_sgd,
    local_training,
)
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    Phase,
    PyTree,
    RoundContext,
    Uncharged,
    named_key,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class LGFedAvgServerState(NamedTuple):
    """The global head, and the last round's mean representation, which starts `fine_tune` and serves nothing else."""

    representation: PyTree
    head: PyTree


class LGFedAvgClientState(NamedTuple):
    """The personal representation of client i, and whether the client has ever trained it."""

    representation: PyTree
    has_trained: Array  # () bool


class LGFedAvgMessage(NamedTuple):
    """What a client reports: the head travels, the representation is looked at only."""

    representation: Uncharged
    head: PyTree


@recorded
def lg_fedavg(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """LG-FedAvg (Liang et al., 2020): the layers below the model's cut are local to a client, those above are global.

    Both parts are trained together; only the global one is averaged. SRPFL's text and FedRep's code share the last two
    layers, FedRep's text all fully connected ones (CIFAR) or the last one (FEMNIST): cut the model there.

    Evaluations: `fine_tune` (the default), the last round's mean local layers trained on the client for
    `fine_tune_epochs` under frozen global ones, as the authors' code tests and fair to clients that have not taken part
    yet; `own_representation`, the client's own layers as it last left them, under the global ones;
    `own_or_mean_representation`, the same with the mean local layers for clients that have never taken part.

    Args:
        model: cut at the first global layer ("fc3" for the last two layers of the MLP).
        optimizer: of both parts, afresh in every round; default SGD with step size 0.01 (SRPFL, section 5).
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs before a client is judged by `fine_tune`.
        client_weighting: "uniform" (paper) or "num_examples" (authors' code).
        fine_tune_optimizer: of `fine_tune`; default as `optimizer`. SRPFL's code has momentum 0.5 there and none in
            training.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32, 16), cut="fc2")
        >>> srp.algorithms.lg_fedavg(model).name
        'lg_fedavg'
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)

    loss = example_loss(model)

    def init(key: Key, data: Any) -> LGFedAvgServerState:
        model.check_fits(data)
        return LGFedAvgServerState(*model.init(key))

    def client(
        key: Key, head: PyTree, state: LGFedAvgClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # (local_i, global_i) <- local SGD from (local_i, global)
        start = SplitParams(state.representation, head)
        representation, head = local_sgd(named_key(key, "local"), loss, start, (), examples, training.in_round(context))
        message = LGFedAvgMessage(Uncharged(representation), head)
        new_state = LGFedAvgClientState(representation, jnp.bool_(True))
        return ClientOutput(message, new_state, client_weight(client_weighting, examples))

    def server(key: Key, state: LGFedAvgServerState, mean: LGFedAvgMessage, context: RoundContext):
        # global <- (1/n) sum_i global_i
        return LGFedAvgServerState(mean.representation.value, mean.head)

    def own_representation(key: Key, server: LGFedAvgServerState, state: LGFedAvgClientState, examples: Examples):
        """The client's own local layers, as it last left them, under the global ones."""
        return lambda x: model.classify(server.head, model.represent(state.representation, x))

    def own_or_mean(key: Key, server: LGFedAvgServerState, state: LGFedAvgClientState, examples: Examples):
        """As `own_representation`, with the mean local layers for clients that have never taken part."""
        representation = jax.tree.map(
            lambda own, mean: jnp.where(state.has_trained, own, mean), state.representation, server.representation
        )
        return lambda x: model.classify(server.head, model.represent(representation, x))

    def fine_tune(key: Key, server: LGFedAvgServerState, state: LGFedAvgClientState, examples: Examples):
        """The mean local layers of the last cohort, trained on the client under the global ones."""
        representation = fit_representation(key, model, server.representation, server.head, examples, tuning)
        return lambda x: model.classify(server.head, model.represent(representation, x))

    return FederatedAlgorithm(
        name="lg_fedavg",
        init=init,
        init_client=lambda key, server, examples: LGFedAvgClientState(server.representation, jnp.bool_(False)),
        round=Phase(lambda server, context: server.head, client, server),
        evaluations={
            "fine_tune": fine_tune,
            "own_representation": own_representation,
            "own_or_mean_representation": own_or_mean,
        },
    )
