"""AFL: the server weighs clients so that the worst mixture of them gets better."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.algorithms.local import mean_loss
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Exchange,
    Key,
    Participants,
    Phase,
    RoundContext,
    Uncharged,
    nothing,
    unchanged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, part


class AFLClientState(NamedTuple):
    """A client's weight, times the number of clients; in reality the server keeps it."""

    share: Array  # () float: N lambda_i
    raised: Array  # () float: N (lambda_i + gamma F_i), before the projection


class AFLMessage(NamedTuple):
    """A client's model, its loss, and its weight, which the server knows."""

    params: SplitParams
    loss: Array  # () float: F_i(w)
    share: Uncharged


def projected(raised: Array, takes_part: Array, total: Array) -> Array:
    """The threshold of a projection onto nonnegative shares with this sum, ().

    The nearest such shares are `max(raised - threshold, 0)` for those that take part.
    """
    # tau = (u_1 + ... + u_r - total) / r for the last r with u_r > tau, u in descending
    # order
    descending = -jnp.sort(jnp.where(takes_part, -raised, jnp.inf))
    is_real = jnp.isfinite(descending)
    sums = jnp.cumsum(jnp.where(is_real, descending, 0))
    counts = jnp.arange(1, raised.shape[0] + 1, dtype=jnp.int32)
    thresholds = (sums - total) / counts.astype(sums.dtype)
    is_positive = is_real & (descending > thresholds)
    last = jnp.max(jnp.where(is_positive, counts, 1)) - 1
    return thresholds[last]


@part
class AFL(FedAvg):
    """AFL (Mohri et al., 2019, stochastic AFL), agnostic federated learning: every part
    of the model is shared, nothing is personal.

    The model is good for the worst mixture of clients, max over lambda of sum_i lambda_i
    F_i(w): it descends the mixture while the weights lambda ascend it and are projected
    back onto the simplex. The new model is the mean of the participants' models, weighted
    by lambda_i; with one local step (`steps=1`) that is the paper's gradient step w - eta
    sum_i lambda_i g_i. F_i is the mean loss of all of a client's examples. The last model
    is the result, not the mean of all, as in the code of q-FFL's authors. Under partial
    participation weights move among the participants, whose sum stays; where all of them
    have none, the round leaves the model as it is. In the paper all take part. With gamma
    = 0 this is `FedAvg`.

    The server keeps lambda_i in reality, so only models and losses are charged.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients; weighting must be "uniform", which lambda begins with.
        weight_step_size: gamma, of lambda; 0.1 in q-FFL's comparison, tuned there. With
            many clients lambda_i is small, and so must gamma be.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.AFL(model, srp.Training(epochs=None, steps=1)).name
        'afl'
    """

    requires_uniform_weighting: ClassVar[bool] = True

    weight_step_size: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 0.1"] = 0.1

    @property
    @override
    def gradient(self) -> ClientFunction | None:
        # The objective is not the mean loss.
        return None

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        weights = Phase(
            "weights",
            nothing,
            self.reweigh,
            unchanged,
            Exchange(lambda state: state, self.own_share),
        )
        return (*super().phases, weights)

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> AFLClientState:
        one = jnp.ones(())  # lambda_i = 1 / N
        return AFLClientState(one, one)

    @override
    def client(
        self,
        key: Key,
        params: Any,
        state: AFLClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        loss = mean_loss(self.loss, params, (), examples).astype(state.share.dtype)
        # w_i <- local SGD from w
        local = super().client(key, params, (), examples, context)
        # lambda_i + gamma F_i(w)
        raised = state.share + context.num_clients * self.weight_step_size * loss
        one = jnp.ones_like(loss)
        return local._replace(
            message=AFLMessage(local.message, loss, Uncharged(state.share)),
            state=state._replace(raised=raised),
            weight=AFLMessage(state.share, one, Uncharged(one)),  # pyright: ignore[reportArgumentType]
        )

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: AFLMessage,
        context: RoundContext,
    ) -> FedAvgServerState:
        # w <- sum_i lambda_i w_i / sum_i lambda_i
        has_weight = mean.share.value > 0
        new = lambda w, mean: jnp.where(has_weight, mean, w)
        return FedAvgServerState(jax.tree.map(new, server.params, mean.params))

    def own_share(
        self,
        broadcast: tuple[()],
        own: AFLClientState,
        others: Participants,
        context: RoundContext,
    ) -> Uncharged:
        """A participant's part of the projection of lambda + gamma F onto the simplex."""
        shown = others.shown
        total = jnp.sum(jnp.where(others.takes_part, shown.share, 0))
        threshold = projected(shown.raised, others.takes_part, total)
        return Uncharged(jnp.maximum(own.raised - threshold, 0))

    def reweigh(
        self,
        key: Key,
        share: Uncharged,
        state: AFLClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Keep the new weight."""
        return ClientOutput((), state._replace(share=share.value))
