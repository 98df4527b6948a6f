"""L2GD: personal models with occasional steps towards their mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import GlobalAndPersonalModel, PersonalState
from fedjax_srp.base import (
    Array,
    Charges,
    ClientOutput,
    Examples,
    Key,
    Phase,
    RoundContext,
    Uncharged,
    named_key,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Share, part


class L2GDServerState(NamedTuple):
    """The last mean of the models, and the kind of the next round."""

    params: SplitParams  # x_bar
    aggregates: Array  # () bool: xi of the next round
    # () bool: every client has x_bar, and x_bar is the mean of all models
    has_mean: Array


class L2GDMean(NamedTuple):
    """The second download of a round."""

    params: SplitParams  # x_bar
    # () bool: xi, a coin that clients could toss from a shared seed
    aggregates: Uncharged


@part
class L2GD(GlobalAndPersonalModel):
    """L2GD (Hanzely and Richtarik, 2020, Algorithm 1), with epochs of local SGD as in
    FedRep's experiments.

    Every client has its own model x_i; the penalty `lambda / (2 n) sum_i |x_i - x_bar|^2`
    draws them together. A coin xi decides the kind of a round. With probability 1 - p it
    is local: participants train, and nothing is sent. With probability p it aggregates:
    participants send their models and step towards the mean. That step keeps their mean,
    so under full participation repeated aggregations need no communication either. The
    clock charges every round with the time of local work, as FedRep's authors count
    rounds.

    Algorithm 1 takes one gradient step of size alpha / (n (1 - p)) in a local round: one
    epoch of full batches, with a `batch_size` of at least the largest client. With eta
    the step size of local training, its aggregation step is then eta lambda (1 - p) / p;
    the code of FedRep's authors has eta lambda.

    Evaluations: `own_model` (the default), x_i; `global`, `fine_tune` (its head) and
    `fine_tune_all`, of the last mean, as in `FedAvg`.

    Args:
        training: of local rounds. The step size is alpha / (n (1 - p)) in FedRep's code,
            0.1 for 100 clients. Weighting is that of the mean, "uniform" in the paper.
        aggregation_step_size: alpha lambda / (n p), in [0, 1]: the step of a model
            towards the mean; 1 replaces it. 0.05 is eta lambda in FedRep's code, for
            alpha = 1, lambda = 0.5 and 100 clients.
        aggregation_probability: p, in [0, 1]; 0.9 in FedRep's experiments, so that one
            round in ten trains.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.L2GD(srp.models.MLP((8, 8), 10, hidden=(4,)), aggregation_probability=0.0)
        >>> history = srp.simulate(algorithm, data, num_rounds=2, key=jax.random.key(0), progress=False)
        >>> int(history.communicated.sum())
        0
    """

    aggregation_step_size: Share = 0.05
    aggregation_probability: Share = 0.9

    def toss(self, key: Key) -> Array:
        """The coin xi of a round."""
        return jax.random.bernoulli(named_key(key, "coin"), self.aggregation_probability)

    @override
    def init(self, key: Key, data: Any) -> L2GDServerState:
        params = self.init_params(key, data)
        return L2GDServerState(params, self.toss(key), jnp.bool_(True))

    @override
    def broadcast(self, server: L2GDServerState, context: RoundContext) -> Uncharged:
        return Uncharged(server.aggregates)

    @override
    def client(
        self,
        key: Key,
        aggregates: Uncharged,
        state: PersonalState,
        examples: Examples,
        context: RoundContext,
    ):
        # xi = 0: x_i <- local SGD on f_i from x_i
        work = jnp.where(aggregates.value, 0, context.work)
        context = context._replace(work=work)
        local = self.local_sgd(key, state.own, examples, context)
        return ClientOutput(
            message=local.params,
            state=PersonalState(local.params),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self, key: Key, server: L2GDServerState, mean: SplitParams, context: RoundContext
    ) -> L2GDServerState:
        # xi = 1: x_bar <- sum_i p_i x_i
        replace = lambda new, old: jnp.where(server.aggregates, new, old)
        return server._replace(params=jax.tree.map(replace, mean, server.params))

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        finish = Phase("finish", self.broadcast_mean, self.step_to_mean, self.toss_again)
        return (*super().phases, finish)

    def broadcast_mean(self, server: L2GDServerState, context: RoundContext) -> L2GDMean:
        """The mean, and the coin."""
        return L2GDMean(server.params, Uncharged(server.aggregates))

    def step_to_mean(
        self,
        key: Key,
        mean: L2GDMean,
        state: PersonalState,
        examples: Examples,
        context: RoundContext,
    ):
        """Move the client's model towards the mean in a round that aggregates."""
        # xi = 1: x_i <- (1 - theta) x_i + theta x_bar
        theta = jnp.where(mean.aggregates.value, self.aggregation_step_size, 0.0)
        rest = 1 - theta
        move = lambda x, x_bar: rest.astype(x.dtype) * x + theta.astype(x.dtype) * x_bar
        return ClientOutput((), PersonalState(jax.tree.map(move, state.own, mean.params)))

    def toss_again(
        self, key: Key, server: L2GDServerState, mean: tuple, context: RoundContext
    ) -> L2GDServerState:
        """The coin of the next round."""
        takes_all = context.cohort_size == context.num_clients
        has_mean = server.aggregates & takes_all
        return L2GDServerState(server.params, self.toss(key), has_mean)

    @property
    @override
    def charges(self) -> Charges:
        return Charges(communicates=self.communicates)

    def communicates(self, server: L2GDServerState, context: RoundContext) -> Array:
        """True in rounds that aggregate, unless all clients have the mean already."""
        takes_all = context.cohort_size == context.num_clients
        return server.aggregates & ~(server.has_mean & takes_all)
