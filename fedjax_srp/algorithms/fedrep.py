"""FedRep: a shared representation, a personal head."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp import tally
from fedjax_srp._checks import check_integer
from fedjax_srp.algorithms._gradient import global_gradient
from fedjax_srp.algorithms.local import (
    Optimizer,
    check_weighting,
    client_weight,
    fine_tuning,
    fit_head,
    fit_representation,
    local_training,
    representation_loss,
    with_tuned_head,
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
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class FedRepServerState(NamedTuple):
    """The representation phi, and the last round's mean head, which starts `fine_tune` and serves nothing else."""

    representation: PyTree
    head: PyTree


class FedRepClientState(NamedTuple):
    """The personal head h_i, and whether the client has ever trained it."""

    head: PyTree
    has_trained: Array  # () bool


class FedRepMessage(NamedTuple):
    """What a client reports: phi_i travels, the head is looked at only."""

    representation: PyTree
    head: Uncharged


@recorded
def fedrep(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    head_epochs: int = 10,
    representation_epochs: int = 1,
    local_epochs: int = 1,
    head_optimizer: Optimizer | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedRep (Collins et al., 2021, Algorithm 1; SRPFL, Algorithm 1, lines 8 to 10): the representation below the
    model's cut is shared, the head above it is personal.

    A round is `local_epochs` times: `head_epochs` epochs of the head under a frozen representation (its features are
    computed once), then `representation_epochs` of the representation under the frozen new head. SRPFL's experiments
    have 1 or 5 times (10 + 1); FedRep's have once (10 + 1) or (10 + 5). With W units of work (`partial_work`) both
    numbers of epochs are multiplied by W in each alternation.

    Evaluations: `fine_tune` (the default), the last round's mean head trained on the client for `fine_tune_epochs`
    under the current representation, as the authors' code tests and fair to clients that have not taken part yet;
    `own_head`, the client's head as it last left it; `own_or_mean_head`, the same with the mean head for clients that
    have never taken part.

    Args:
        model: cut at the first personal layer.
        optimizer: of the representation, afresh in every alternation; default SGD with step size 0.01 (SRPFL,
            section 5).
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        head_epochs: tau_h, in epochs.
        representation_epochs: tau_phi, in epochs.
        local_epochs: how many times a round alternates.
        head_optimizer: of the head; default as `optimizer`.
        fine_tune_epochs: epochs of the head before a client is judged by `fine_tune`.
        client_weighting: "uniform" (paper) or "num_examples" (authors' code).
        fine_tune_optimizer: of the head in `fine_tune`; default as `head_optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.fedrep(model).evaluations)
        ['fine_tune', 'own_head', 'own_or_mean_head']
    """
    head_optimizer = optimizer if head_optimizer is None else head_optimizer
    head_training = local_training(head_optimizer, batch_size, head_epochs, what="head")
    training = local_training(optimizer, batch_size, representation_epochs, what="representation")
    tuning = fine_tuning(fine_tune_optimizer, head_optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    check_integer("local_epochs", local_epochs, 1)

    def init(key: Key, data: Any) -> FedRepServerState:
        model.check_fits(data)
        return FedRepServerState(*model.init(key))

    def client(
        key: Key, representation: PyTree, state: FedRepClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        of_head, of_representation = head_training.in_round(context), training.in_round(context)

        def alternate(r: Array | int, parts: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            representation, head = parts
            before = r * context.work
            # h_i <- tau_h steps on f_i(h_i, phi), phi frozen                                       (eq. 3)
            head = fit_head(key, model, representation, head, examples, of_head, before * head_epochs)
            # phi_i <- tau_phi steps on f_i(h_i, phi_i), the new h_i frozen                         (eq. 4)
            first_epoch = before * representation_epochs
            representation = fit_representation(
                key, model, representation, head, examples, of_representation, first_epoch
            )
            return representation, head

        # The first alternation stands outside the loop: it starts from a representation that all clients share.
        parts = alternate(0, (representation, state.head))
        if local_epochs > 1:
            parts = tally.fori_loop(1, local_epochs, alternate, parts)
        representation, head = parts
        message = FedRepMessage(representation, Uncharged(head))
        return ClientOutput(
            message, FedRepClientState(head, jnp.bool_(True)), client_weight(client_weighting, examples)
        )

    def server(key: Key, state: FedRepServerState, mean: FedRepMessage, context: RoundContext) -> FedRepServerState:
        # phi <- (1/n) sum_i phi_i
        return FedRepServerState(mean.representation, mean.head.value)

    def fine_tune(key: Key, server: FedRepServerState, state: FedRepClientState, examples: Examples):
        """The mean head of the last cohort, trained on the client under the current representation."""
        return with_tuned_head(key, model, SplitParams(*server), examples, tuning)

    def own_head(key: Key, server: FedRepServerState, state: FedRepClientState, examples: Examples):
        """The client's own head, as it last left it, under the current representation."""
        return lambda x: model.classify(state.head, model.represent(server.representation, x))

    def own_or_mean_head(key: Key, server: FedRepServerState, state: FedRepClientState, examples: Examples):
        """As `own_head`, with the mean head of the last cohort for clients that have never taken part."""
        head = jax.tree.map(lambda own, mean: jnp.where(state.has_trained, own, mean), state.head, server.head)
        return lambda x: model.classify(head, model.represent(server.representation, x))

    return FederatedAlgorithm(
        name="fedrep",
        init=init,
        init_client=lambda key, server, examples: FedRepClientState(server.head, jnp.bool_(False)),
        round=Phase(lambda server, context: server.representation, client, server),
        evaluations={"fine_tune": fine_tune, "own_head": own_head, "own_or_mean_head": own_or_mean_head},
        gradient=global_gradient(representation_loss(model), training, client_weighting, lambda state: state.head),
    )
