"""FedGATE: FedAvg whose local steps are corrected for drift by tracked gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms._evaluations import global_evaluations
from fedjax_srp.algorithms._gradient import global_gradient
from fedjax_srp.algorithms._normalised import NormalisedMessage, mean_direction, moved, normalised_output, reach
from fedjax_srp.algorithms.local import (
    Objective,
    Optimizer,
    check_weighting,
    client_weight,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
    num_steps,
    plain_gradient,
    step_size,
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
    named_key,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class FedGATEServerState(NamedTuple):
    """The global model w, and Delta / tau: the mean direction of the last cohort, which its clients download."""

    params: SplitParams
    direction: PyTree


class FedGATEClientState(NamedTuple):
    """The gradient tracking delta_i, and the stage it belongs to."""

    tracking: PyTree
    stage: Array  # () int32


@recorded
def fedgate(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    server_step_size: float | Array = 1.0,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    evaluation: str = "global",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedGATE (Haddadpour et al., 2020) as FLANP runs it (Algorithm 2): every part of the model is shared; a client
    keeps a gradient tracking variable, as large as the model, and downloads the cohort's mean direction as well.

    Local steps follow g_i(w_i) - delta_i, and delta_i learns by how much the client's gradients differ from the mean:
    delta_i <- delta_i + (Delta_i - Delta) / tau, after every round. (The printed line subtracts Delta_i from itself.)
    It starts from zero in every stage of the participation policy; eta and gamma are the same in all stages, where the
    paper's follow n. Clients that differ then do not drift apart, and the fixed point is the minimum of the mean loss.
    With one epoch of full batches and gamma = 1 it is gradient descent.

    The paper has equal tau. Where clients take unequal numbers of steps, Delta_i / tau_i is what is averaged, and the
    model moves by eta gamma times the mean tau: so the tracking variables of a cohort still sum to zero, without which
    the fixed point would be another one. Under momentum tau_i is the sum of the weights that gradients get in the move.

    Evaluations: those of `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round, made by `srp.algorithms.sgd`, because its step size eta is
            divided by; default SGD with step size 0.01.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, tau, steps on batches drawn with replacement (set local_epochs=None).
        server_step_size: gamma; 1 in FLANP's experiments with networks.
        fine_tune_epochs: epochs of fine-tuning before a client is judged.
        client_weighting: "uniform" (paper) or "num_examples".
        evaluation: the default one.
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, an optimizer that does not tell its step size, or labels and examples that
            do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.fedgate(model, srp.algorithms.sgd(0.05), local_epochs=2).name
        'fedgate'
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    if isinstance(training.optimizer, optax.GradientTransformation):  # else it is asked in the round
        step_size(training)
    check_numbers("server_step_size", server_step_size, "give a step size, e.g. 1.0", positive=True, max_ndim=0)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    loss = example_loss(model)

    def init(key: Key, data: Any) -> FedGATEServerState:
        model.check_fits(data)
        params = model.init(key)
        return FedGATEServerState(params, jax.tree.map(jnp.zeros_like, params))

    def init_client(key: Key, server: FedGATEServerState, examples: Examples) -> FedGATEClientState:
        return FedGATEClientState(jax.tree.map(jnp.zeros_like, server.params), jnp.int32(0))

    def client(
        key: Key, params: SplitParams, state: FedGATEClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # delta_i <- 0 at the beginning of a stage
        tracking = jax.tree.map(lambda d: jnp.where(state.stage == context.stage, d, 0), state.tracking)

        def tracked(objective: Objective, w_i: PyTree, weights: Array) -> PyTree:
            # d_i = g_i(w_i) - delta_i
            return jax.tree.map(jnp.subtract, plain_gradient(objective, w_i, weights), tracking)

        # w_i <- local SGD along it, from w
        in_round = training.in_round(context)
        local = local_sgd(named_key(key, "local"), loss, params, (), examples, in_round, gradient=tracked)
        # Delta_i / tau_i = (w - w_i) / (eta tau_i)
        weight = client_weight(client_weighting, examples)
        output = normalised_output(params, local, reach(in_round, examples), weight)
        # delta_i <- delta_i + Delta_i / tau_i, of which `correct` takes off the mean
        return output._replace(
            state=FedGATEClientState(jax.tree.map(jnp.add, tracking, output.message.direction), context.stage)
        )

    def server(
        key: Key, state: FedGATEServerState, mean: NormalisedMessage, context: RoundContext
    ) -> FedGATEServerState:
        # w <- w - eta gamma Delta
        direction = mean_direction(mean)
        return FedGATEServerState(moved(state.params, direction, server_step_size * mean.length), direction)

    def correct(
        key: Key, direction: PyTree, state: FedGATEClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # delta_i <- delta_i - Delta / tau, where steps were taken
        has_moved = num_steps(training.in_round(context), examples) > 0
        tracking = jax.tree.map(lambda d, m: jnp.where(has_moved, d - m, d), state.tracking, direction)
        return ClientOutput((), state._replace(tracking=tracking))

    return FederatedAlgorithm(
        name="fedgate",
        init=init,
        init_client=init_client,
        round=Phase(lambda server, context: server.params, client, server),
        evaluations=global_evaluations(model, tuning, evaluation),
        finish=Phase(lambda server, context: server.direction, correct, lambda key, server, mean, context: server),
        gradient=global_gradient(loss, training, client_weighting),
    )
