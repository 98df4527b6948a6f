"""L2GD: personal models that now and then step towards their mean."""

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
    Uncharged,
    named_key,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class L2GDServerState(NamedTuple):
    """The last mean of the models, and what the coming round is."""

    params: SplitParams  # x_bar
    aggregates: Array  # () bool: xi of the coming round
    has_mean: Array  # () bool: every client knows x_bar, and it is the mean of all models


class L2GDClientState(NamedTuple):
    """The personal model x_i."""

    own: SplitParams


class L2GDMean(NamedTuple):
    """What participants are told after a round."""

    params: SplitParams  # x_bar
    aggregates: Uncharged  # () bool: xi, a coin that everybody can toss


@recorded
def l2gd(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    aggregation_step_size: float | Array = 0.05,
    aggregation_probability: float | Array = 0.9,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """L2GD (Hanzely and Richtarik, 2020, Algorithm 1), with epochs of local SGD as in FedRep's experiments.

    Every client has a model x_i of its own; the penalty `lambda / (2 n) sum_i |x_i - x_bar|^2` draws them together. A
    coin xi says what a round is. With probability 1 - p it is local: participants train, and nothing travels. With
    probability p it aggregates: participants send their models and step towards the mean. That step keeps the mean of
    those who take it, so where everybody takes part, aggregation after aggregation is silent as well. The clock charges
    every round with the time of local work, as FedRep's authors count rounds.

    Algorithm 1 takes one gradient step of size alpha / (n (1 - p)) in a local round: one epoch of full batches, with a
    `batch_size` of at least the largest client. With eta the step size of local training, its aggregation step is then
    eta lambda (1 - p) / p; the code of FedRep's authors takes eta lambda.

    Evaluations: `own_model` (the default), x_i; `global`, `fine_tune` (its head) and `fine_tune_all`, of the last mean,
    as in `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local rounds, afresh in each; default SGD with step size 0.01. FedRep's code: alpha / (n (1 - p)),
            which is 0.1 for 100 clients.
        aggregation_step_size: alpha lambda / (n p), in [0, 1]: how far a model steps towards the mean; 1 replaces it.
            0.05 is what FedRep's code makes of alpha = 1, lambda = 0.5 and 100 clients.
        aggregation_probability: p, in [0, 1]; 0.9 in FedRep's experiments, so that one round in ten trains.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a local round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs before a client is judged by `fine_tune` and `fine_tune_all`.
        client_weighting: of the mean; "uniform" (paper) or "num_examples".
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.l2gd(srp.models.mlp((8, 8), 10, hidden=(4,)), aggregation_probability=0.0)
        >>> history = srp.simulate(algorithm, data, num_rounds=2, key=jax.random.key(0), progress=False)
        >>> int(history.communicated.sum())
        0
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    check_share("aggregation_step_size", aggregation_step_size)
    check_share("aggregation_probability", aggregation_probability)

    loss = example_loss(model)

    def toss(key: Key) -> Array:
        return jax.random.bernoulli(named_key(key, "coin"), aggregation_probability)

    def init(key: Key, data: Any) -> L2GDServerState:
        model.check_fits(data)
        return L2GDServerState(model.init(key), toss(key), jnp.bool_(True))

    def client(
        key: Key, aggregates: Uncharged, state: L2GDClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # xi = 0: x_i <- local SGD on f_i from x_i
        work = jnp.where(aggregates.value, 0, context.work)
        now = training.in_round(context._replace(work=work))
        own = local_sgd(named_key(key, "local"), loss, state.own, (), examples, now)
        return ClientOutput(own, L2GDClientState(own), client_weight(client_weighting, examples))

    def average(key: Key, state: L2GDServerState, mean: SplitParams, context: RoundContext) -> L2GDServerState:
        # xi = 1: x_bar <- sum_i p_i x_i
        pick = lambda new, old: jnp.where(state.aggregates, new, old)  # noqa: E731
        return state._replace(params=jax.tree.map(pick, mean, state.params))

    def step_to_mean(
        key: Key, mean: L2GDMean, state: L2GDClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        # xi = 1: x_i <- (1 - theta) x_i + theta x_bar
        theta = jnp.where(mean.aggregates.value, aggregation_step_size, 0.0)
        move = lambda x, x_bar: (1 - theta).astype(x.dtype) * x + theta.astype(x.dtype) * x_bar  # noqa: E731
        return ClientOutput((), L2GDClientState(jax.tree.map(move, state.own, mean.params)))

    def toss_again(key: Key, state: L2GDServerState, mean: tuple, context: RoundContext) -> L2GDServerState:
        return L2GDServerState(state.params, toss(key), state.aggregates & (context.cohort_size == context.num_clients))

    def communicates(server: L2GDServerState, context: RoundContext) -> Array:
        return server.aggregates & ~(server.has_mean & (context.cohort_size == context.num_clients))

    def own_model(key: Key, server: L2GDServerState, state: L2GDClientState, examples: Examples):
        """The client's personal model."""
        return lambda x: model.logits(state.own, x)

    def tell(server: L2GDServerState, context: RoundContext) -> L2GDMean:
        return L2GDMean(server.params, Uncharged(server.aggregates))

    return FederatedAlgorithm(
        name="l2gd",
        init=init,
        init_client=lambda key, server, examples: L2GDClientState(server.params),
        round=Phase(lambda server, context: Uncharged(server.aggregates), client, average),
        evaluations={"own_model": own_model} | global_evaluations(model, tuning),
        finish=Phase(tell, step_to_mean, toss_again),
        communicates=communicates,
    )
