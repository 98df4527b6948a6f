"""SCAFFOLD: FedAvg whose local steps are corrected for drift by control variates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms._evaluations import global_evaluations
from fedjax_srp.algorithms._gradient import global_gradient
from fedjax_srp.algorithms._normalised import divided, reach
from fedjax_srp.algorithms.local import (
    Objective,
    Optimizer,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
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


class ScaffoldServerState(NamedTuple):
    """The global model x, and the control variate c: the mean of all clients' c_i."""

    params: SplitParams
    variate: PyTree


class ScaffoldClientState(NamedTuple):
    """The control variate c_i: an estimate of the client's mean gradient."""

    variate: PyTree


class ScaffoldMessage(NamedTuple):
    """What a client sends: y_i - x, and how its variate has changed."""

    params: PyTree
    variate: PyTree


@recorded
def scaffold(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    server_step_size: float | Array = 1.0,
    counts_momentum: bool = True,
    fine_tune_epochs: int = 10,
    evaluation: str = "global",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): every part of the model is shared; a client keeps a
    control variate, and sends as much again as the model.

    Local steps follow g_i(y) - c_i + c, so that clients that differ drift less. A client's new variate is the mean of
    the gradients it has met, read off how far it has moved; it costs no gradient. Means are uniform, as in the paper:
    c is the mean of ALL clients' variates, whoever takes part. With identical clients, full batches and full
    participation this is `fedavg`.

    The paper's steps are plain SGD: K of them move by eta K times the mean. With momentum they move further, by eta
    times the sum of the weights that all gradients get, and the variate is divided by that. FedRep's code divides by
    eta K whatever the momentum (0.5): `counts_momentum=False`. The mean c is then twice too large, and with full
    participation the correction c - c_i alternates between almost nothing and twice too much.

    Evaluations: those of `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round, made by `srp.algorithms.sgd`, because its step size eta is
            divided by; default SGD with step size 0.01.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        server_step_size: eta_g; 1 in FedRep's table, 0.5 there on FEMNIST.
        counts_momentum: whether the variate is a mean of gradients under momentum too; see above.
        fine_tune_epochs: epochs of fine-tuning before a client is judged.
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
        >>> srp.algorithms.scaffold(model, srp.algorithms.sgd(0.05)).name
        'scaffold'
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    if isinstance(training.optimizer, optax.GradientTransformation):  # else it is asked in the round
        step_size(training)
    check_numbers("server_step_size", server_step_size, "give a step size, e.g. 1.0", positive=True, max_ndim=0)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    loss = example_loss(model)
    gradient_of = global_gradient(loss, training, "uniform")

    def init(key: Key, data: Any) -> ScaffoldServerState:
        model.check_fits(data)
        params = model.init(key)
        return ScaffoldServerState(params, jax.tree.map(jnp.zeros_like, params))

    def client(
        key: Key, server: ScaffoldServerState, state: ScaffoldClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        correction = jax.tree.map(jnp.subtract, server.variate, state.variate)

        def corrected(objective: Objective, y: PyTree, weights: Array) -> PyTree:
            # g_i(y_i) + (c - c_i)
            return jax.tree.map(jnp.add, plain_gradient(objective, y, weights), correction)

        # y_i <- local SGD along it, from x
        in_round = training.in_round(context)
        y = local_sgd(named_key(key, "local"), loss, server.params, (), examples, in_round, gradient=corrected)
        moved = jax.tree.map(jnp.subtract, y, server.params)
        # c_i <- c_i - c + (x - y_i) / (K eta); without steps it stays
        length = reach(in_round, examples, counts_momentum)
        met = divided(moved, length)
        change = jax.tree.map(lambda c, d: jnp.where(length > 0, -c - d, 0), server.variate, met)
        variate = jax.tree.map(jnp.add, state.variate, change)
        return ClientOutput(ScaffoldMessage(moved, change), ScaffoldClientState(variate))

    def server(key: Key, state: ScaffoldServerState, mean: ScaffoldMessage, context: RoundContext):
        # x <- x + (eta_g / |S|) sum_i (y_i - x)
        params = jax.tree.map(lambda x, d: x + server_step_size * d, state.params, mean.params)
        # c <- c + (1 / N) sum_i (c_i+ - c_i)
        share = context.cohort_size.astype(float) / context.num_clients
        variate = jax.tree.map(lambda c, d: c + share.astype(c.dtype) * d, state.variate, mean.variate)
        return ScaffoldServerState(params, variate)

    def gradient(
        key: Key, server: ScaffoldServerState, state: ScaffoldClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        return gradient_of(key, server.params, state, examples, context)

    return FederatedAlgorithm(
        name="scaffold",
        init=init,
        init_client=lambda key, server, examples: ScaffoldClientState(jax.tree.map(jnp.zeros_like, server.params)),
        round=Phase(lambda server, context: server, client, server),
        evaluations=global_evaluations(model, tuning, evaluation),
        gradient=gradient,
    )
