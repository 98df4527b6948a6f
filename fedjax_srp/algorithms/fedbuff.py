"""FedBuff: an asynchronous server that steps when k updates are in."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms.local import (
    Optimizer,
    check_weighting,
    client_weight,
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
    named_key,
    nothing,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class FedBuffServerState(NamedTuple):
    """The global model w."""

    params: SplitParams


class FedBuffClientState(NamedTuple):
    """The model w_stale that the client was handed when its job began, and how many server steps that model had."""

    params: SplitParams
    version: Array  # () int32


@recorded
def fedbuff(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    server_step_size: float | Array = 1.0,
    staleness_exponent: float | Array = 0.5,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedBuff (Nguyen et al., 2022, Algorithm 1): every part of the model is shared, updates may be stale.

    To be run with `participation.buffered(k)`, where a round is a server step. A client trains from the model that it
    was handed when its job began, and gets the new one after the server step that uses its update. The staleness tau
    counts the server steps in between; its mean over the cohort is recorded as `staleness`. Batches are those of the
    round that uses the update. With `full`, tau = 0 and a server step size of 1, this is `fedavg`.

    With k = 1 the server is as asynchronous as that of FedAsync (Xie et al., 2019), whose update is another one: it
    moves towards the client's model, w <- w + alpha s(tau) (w_i - w), and here w moves by w_i - w_stale.

    Evaluations: `global` (the default), the model as it is; `fine_tune`, the head trained on the client for
    `fine_tune_epochs`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every job; default SGD with step size 0.01.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a job, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        server_step_size: eta_g.
        staleness_exponent: a in s(tau) = (1 + tau)^-a; 0.5 in the paper, 0 weighs old and new updates alike.
        fine_tune_epochs: epochs of the head before a client is judged by `fine_tune`.
        client_weighting: "uniform" (paper) or "num_examples".
        fine_tune_optimizer: of the head in `fine_tune`; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.fedbuff(srp.models.mlp((8, 8), num_classes=10, hidden=(32,)))
        >>> options = {"participation": srp.participation.buffered(5), "num_rounds": 3, "progress": False}
        >>> history = srp.simulate(algorithm, data, key=jax.random.key(0), **options)
        >>> float(history.metrics["staleness"][0])
        0.0
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    check_numbers("server_step_size", server_step_size, "give a step size, e.g. 1.0", positive=True, max_ndim=0)
    check_numbers("staleness_exponent", staleness_exponent, "give 0 for none, or e.g. 0.5", max_ndim=0)

    loss = example_loss(model)

    def init(key: Key, data: Any) -> FedBuffServerState:
        model.check_fits(data)
        return FedBuffServerState(model.init(key))

    def client(
        key: Key, broadcast: tuple, state: FedBuffClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # w_i <- local SGD from w_stale
        local = local_sgd(named_key(key, "local"), loss, state.params, (), examples, training.in_round(context))
        # s(tau) = (1 + tau)^-a
        staleness = (context.round - state.version).astype(float)
        discount = (1.0 + staleness) ** -staleness_exponent
        # Delta_i = s(tau) (w_i - w_stale)
        update = jax.tree.map(lambda new, old: discount.astype(new.dtype) * (new - old), local, state.params)
        return ClientOutput(update, weight=client_weight(client_weighting, examples), info={"staleness": staleness})

    def server(key: Key, state: FedBuffServerState, mean: SplitParams, context: RoundContext) -> FedBuffServerState:
        # w <- w + eta_g (1/k) sum_i Delta_i
        return FedBuffServerState(jax.tree.map(lambda w, delta: w + server_step_size * delta, state.params, mean))

    def begin_job(
        key: Key, params: SplitParams, state: FedBuffClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # w_stale <- w
        return ClientOutput((), FedBuffClientState(params, context.round + 1))

    def as_it_is(key: Key, server: FedBuffServerState, state: FedBuffClientState, examples: Examples):
        """The global model as it is."""
        return lambda x: model.logits(server.params, x)

    def fine_tune(key: Key, server: FedBuffServerState, state: FedBuffClientState, examples: Examples):
        """The global model, its head trained on the client."""
        return with_tuned_head(key, model, server.params, examples, tuning)

    hand_out = Phase(lambda server, context: server.params, begin_job, lambda key, server, mean, context: server)
    return FederatedAlgorithm(
        name="fedbuff",
        init=init,
        init_client=lambda key, server, examples: FedBuffClientState(server.params, jnp.int32(0)),
        round=Phase(nothing, client, server),
        evaluations={"global": as_it_is, "fine_tune": fine_tune},
        finish=hand_out,
    )
