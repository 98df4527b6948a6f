"""A method to copy: save this file under your method's name, replace `template` in it, change the mathematics.

It runs as it stands: a shared model, a personal bias on its outputs, both trained together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms import local
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    Phase,
    RoundContext,
    Uncharged,
    named_key,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


# States hold arrays only, and every round returns them with the shapes and dtypes that `init` and `init_client` chose.
class TemplateServerState(NamedTuple):
    """The shared model w, and the last cohort's mean bias, which starts `fine_tune` and serves nothing else."""

    params: SplitParams
    bias: Array  # (num_classes,)


class TemplateClientState(NamedTuple):
    """The personal bias b_i: the engine keeps it from one participation of the client to the next."""

    bias: Array  # (num_classes,)


class TemplateParts(NamedTuple):
    """What a client trains, and what it reports."""

    params: SplitParams
    bias: Any  # in a message: Uncharged


@recorded
def template(
    model: SplitModel,
    optimizer: local.Optimizer | None = None,
    penalty: float | Array = 0.01,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: local.Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedAvg with a personal bias: the model is shared, what each client adds to its outputs is personal.

    FedSim (Pillutla et al., 2022) with the smallest personal part: a client descends
    f_i(w, b_i) + (penalty / 2) |b_i|^2 in both at once and sends w alone.

    Evaluations: `fine_tune` (the default), the last cohort's mean bias trained on the client under the shared model;
    `own_bias`, the client's bias as it last left it; `global`, the shared model without a bias.

    Args:
        model: where it is cut does not matter.
        optimizer: of local training, afresh in every round; default SGD with step size 0.01.
        penalty: lambda, of the personal bias.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs of the bias before a client is judged by `fine_tune`.
        client_weighting: "uniform" or "num_examples".
        fine_tune_optimizer: of the bias in `fine_tune`; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> list(template(srp.models.mlp((8, 8), num_classes=10, hidden=(32,))).evaluations)
        ['fine_tune', 'own_bias', 'global']
    """
    # Arguments are checked here, before anything is traced; an error names argument, value and remedy. Floats may be
    # tracers, so that sweeps compile once: `check_numbers` lets them pass, a Python `if` on them would fail.
    training = local.local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = local.fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    local.check_weighting(client_weighting)
    check_numbers("penalty", penalty, "give 0 for none, or a small number, e.g. 0.01", max_ndim=0)

    def loss_of_bias(bias: Array, params: SplitParams, x: Array, y: Array, key: Key | None) -> Array:
        # One loss an example, the model's own. Ranks are spelt out (`bias[None]`): promotion is an error in the tests.
        return model.loss(model.logits(params, x, key) + bias[None], y) + 0.5 * penalty * jnp.sum(bias * bias)

    def loss(parts: TemplateParts, frozen: tuple, x: Array, y: Array, key: Key | None) -> Array:
        return loss_of_bias(parts.bias, parts.params, x, y, key)

    def init(key: Key, data: Any) -> TemplateServerState:
        model.check_fits(data)
        params = model.init(key)
        # The dtype of the parameters, not the default: runs in float64 stay in float64.
        return TemplateServerState(params, jnp.zeros(model.num_classes, jax.tree.leaves(params)[0].dtype))

    def client(
        key: Key, params: SplitParams, state: TemplateClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # Written for one client. `params` is what `round.broadcast` returned; arrays come as arguments, never from
        # outside. Keys are named by purpose and used once: "local" draws the batches that every other method draws.
        # (w_i, b_i) <- local SGD from (w, b_i)
        start = TemplateParts(params, state.bias)
        # `in_round` brings the client's work and the round's optimizer. Work, and so local.num_steps, may be 0 (it is
        # in a padded slot of a chunk): guard what is divided by it.
        parts = local.local_sgd(named_key(key, "local"), loss, start, (), examples, training.in_round(context))
        return ClientOutput(
            # The engine averages the message, and the server gets floats. Wrapped, the bias is seen and not charged.
            message=TemplateParts(parts.params, Uncharged(parts.bias)),
            state=TemplateClientState(parts.bias),
            weight=local.client_weight(client_weighting, examples),
            # Scalars to look at: their mean over the cohort is history.metrics["bias_norm"].
            info={"bias_norm": jnp.sqrt(jnp.sum(parts.bias * parts.bias))},
        )

    def server(key: Key, state: TemplateServerState, mean: TemplateParts, context: RoundContext) -> TemplateServerState:
        # w <- sum_i p_i w_i; `mean` has the structure of the message, wrappers included
        return TemplateServerState(mean.params, mean.bias.value)

    # An evaluation gets TRAINING data and returns a function of inputs; the engine keeps the test data.
    def fine_tune(key: Key, server: TemplateServerState, state: TemplateClientState, examples: Examples):
        bias = local.local_sgd(named_key(key, "head"), loss_of_bias, server.bias, server.params, examples, tuning)
        return lambda x: model.logits(server.params, x) + bias[None]

    def own_bias(key: Key, server: TemplateServerState, state: TemplateClientState, examples: Examples):
        return lambda x: model.logits(server.params, x) + state.bias[None]

    def as_it_is(key: Key, server: TemplateServerState, state: TemplateClientState, examples: Examples):
        return lambda x: model.logits(server.params, x)

    return FederatedAlgorithm(
        name="template",
        init=init,
        init_client=lambda key, server, examples: TemplateClientState(server.bias),
        # The broadcast belongs to the phase and is charged once; hand out only what clients download.
        round=Phase(lambda server, context: server.params, client, server),
        evaluations={"fine_tune": fine_tune, "own_bias": own_bias, "global": as_it_is},
    )
