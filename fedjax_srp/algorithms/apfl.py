"""APFL: every client mixes a model of its own with the global one."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_share
from fedjax_srp.algorithms._evaluations import global_evaluations
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


class APFLServerState(NamedTuple):
    """The global model w."""

    params: SplitParams


class APFLClientState(NamedTuple):
    """The client's own model v_i, and its share alpha_i of the mixture."""

    own: SplitParams
    alpha: Array  # () float in [0, 1]


class APFLParts(NamedTuple):
    """What a client trains: the global model's copy w_i, its own model v_i, and alpha_i where it adapts."""

    shared: SplitParams
    own: SplitParams
    alpha: Array | None


def mixture(alpha: Array, own: SplitParams, shared: SplitParams) -> SplitParams:
    """alpha v + (1 - alpha) w, in the parameters."""
    return jax.tree.map(lambda v, w: alpha.astype(v.dtype) * v + (1 - alpha).astype(v.dtype) * w, own, shared)


@recorded
def apfl(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    own_share: float | Array = 0.75,
    adaptive: bool = False,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """APFL (Deng et al., 2020, Algorithm 1): a global model by FedAvg, and personal mixtures with it.

    The global model is that of `fedavg`, whatever the share alpha. Beside it every client keeps a model v_i, trained
    step by step on the loss of the mixture alpha_i v_i + (1 - alpha_i) w_i, where w_i is its copy of the global model;
    alpha = 1 trains v_i on the client alone. Only w_i travels. A participant takes two gradients a step.

    FedRep's authors fix alpha, and so does this by default. Adaptive, alpha_i descends the same loss, in every step and
    with the same optimizer (the code of APFL's authors: in the first batch of a round), and is kept in [0, 1]; its mean
    over the cohort is recorded as `own_share`. It may end at 1, where every client trains alone. FedRep's code mixes
    alpha v_i + alpha w_i while it trains, and one momentum serves both models' steps: this follows neither.

    Evaluations: `own_model` (the default), the mixture of the client's v_i, as it last left it, with the global model;
    `global`, `fine_tune` (its head) and `fine_tune_all`, as in `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of all that is trained, afresh in every round; default SGD with step size 0.01.
        own_share: alpha, share of the client's own model, in [0, 1]; where the adaptive one starts. 0.75 in the code of
            FedRep's authors.
        adaptive: whether every client learns its share.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
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
        >>> srp.algorithms.apfl(model, own_share=0.5, adaptive=True).name
        'apfl'
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    check_share("own_share", own_share)

    loss = example_loss(model)

    def both_losses(parts: APFLParts, fixed: Array, x: Array, y: Array, key: Key | None) -> Array:
        # grad_w f_i(w_i), alpha grad f_i(mixture) for v_i and <v_i - w_i, grad f_i(mixture)> for alpha_i
        alpha = fixed if parts.alpha is None else parts.alpha
        mixed = mixture(alpha, parts.own, jax.lax.stop_gradient(parts.shared))
        return loss(parts.shared, (), x, y, key) + loss(mixed, (), x, y, key)

    def onto_unit_interval(parts: APFLParts) -> APFLParts:
        return parts if parts.alpha is None else parts._replace(alpha=jnp.clip(parts.alpha, 0, 1))

    def init(key: Key, data: Any) -> APFLServerState:
        model.check_fits(data)
        return APFLServerState(model.init(key))

    def init_client(key: Key, server: APFLServerState, examples: Examples) -> APFLClientState:
        return APFLClientState(server.params, jnp.asarray(own_share, jax.tree.leaves(server.params)[0].dtype))

    def client(
        key: Key, params: SplitParams, state: APFLClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # (w_i, v_i, alpha_i) <- local SGD from (w, v_i, alpha_i), all three from the same point
        start = APFLParts(params, state.own, state.alpha if adaptive else None)
        parts = local_sgd(
            named_key(key, "local"),
            both_losses,
            start,
            state.alpha,
            examples,
            training.in_round(context),
            after_step=onto_unit_interval,
        )
        new = APFLClientState(parts.own, state.alpha if parts.alpha is None else parts.alpha)
        return ClientOutput(parts.shared, new, client_weight(client_weighting, examples), {"own_share": new.alpha})

    def server(key: Key, state: APFLServerState, mean: SplitParams, context: RoundContext) -> APFLServerState:
        # w <- sum_i p_i w_i
        return APFLServerState(mean)

    def own_model(key: Key, server: APFLServerState, state: APFLClientState, examples: Examples):
        """The client's own model, as it last left it, mixed with the global one in its share."""
        params = mixture(state.alpha, state.own, server.params)
        return lambda x: model.logits(params, x)

    return FederatedAlgorithm(
        name="apfl",
        init=init,
        init_client=init_client,
        round=Phase(lambda server, context: server.params, client, server),
        evaluations={"own_model": own_model} | global_evaluations(model, tuning),
    )
