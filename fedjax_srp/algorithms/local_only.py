"""Local only: every client trains its own model, alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.local import (
    Optimizer,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
    with_tuned_head,
)
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
    nothing,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class LocalOnlyServerState(NamedTuple):
    """The model w_0 that everybody starts from, and how large the last cohort's models are: their divergence shows."""

    params: SplitParams
    square_norm: Array  # () float, mean of |w_i|^2


class LocalOnlyClientState(NamedTuple):
    """The client's model w_i."""

    params: SplitParams


@recorded
def local_only(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """Local-only training (the first row of FedRep's table): nothing is shared, everything is personal.

    A participant goes on with its own model where it last left it; all start from the same one. Nothing is sent and no
    communication is charged, and a round lasts as long as its slowest participant computes, as in every method.

    Evaluations: `own_model` (the default), the client's model as it last left it; `fine_tune`, the same with its head
    trained further on the client for `fine_tune_epochs`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round; default SGD with step size 0.01.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs of the head before a client is judged by `fine_tune`.
        fine_tune_optimizer: of the head in `fine_tune`; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.local_only(srp.models.mlp((8, 8), num_classes=10, hidden=(32,)))
        >>> history = srp.simulate(algorithm, data, num_rounds=1, key=jax.random.key(0), progress=False)
        >>> history.bytes_up, history.bytes_down, bool(history.communicated[0])
        (0, 0, False)
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    loss = example_loss(model)

    def square_norm(params: SplitParams) -> Array:
        return jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)]))

    def init(key: Key, data: Any) -> LocalOnlyServerState:
        model.check_fits(data)
        params = model.init(key)
        return LocalOnlyServerState(params, square_norm(params))

    def client(
        key: Key, broadcast: tuple, state: LocalOnlyClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # w_i <- local SGD from w_i
        in_round = training.in_round(context)
        params = local_sgd(named_key(key, "local"), loss, state.params, (), examples, in_round)
        return ClientOutput(Uncharged(square_norm(params)), LocalOnlyClientState(params))

    def server(key: Key, state: LocalOnlyServerState, mean: Uncharged, context: RoundContext) -> LocalOnlyServerState:
        return state._replace(square_norm=mean.value)

    def own_model(key: Key, server: LocalOnlyServerState, state: LocalOnlyClientState, examples: Examples):
        """The client's own model, as it last left it."""
        return lambda x: model.logits(state.params, x)

    def fine_tune(key: Key, server: LocalOnlyServerState, state: LocalOnlyClientState, examples: Examples):
        """The client's own model, its head trained further on the client."""
        return with_tuned_head(key, model, state.params, examples, tuning)

    return FederatedAlgorithm(
        name="local_only",
        init=init,
        init_client=lambda key, server, examples: LocalOnlyClientState(server.params),
        round=Phase(nothing, client, server),
        evaluations={"own_model": own_model, "fine_tune": fine_tune},
    )
