"""SCAFFOLD: FedAvg whose local steps are corrected for drift by control variates."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms._normalised import divide, total_step
from fedjax_srp.algorithms.examples import mean_of_all
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import Objective, plain_gradient
from fedjax_srp.algorithms.training import check_step_size
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.models.normalization import with_statistics_of
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import StepSize, part


class ScaffoldServerState(NamedTuple):
    """The global model x, and the control variate c: the mean of all clients' c_i."""

    params: SplitParams
    variate: PyTree


class ScaffoldClientState(NamedTuple):
    """The control variate c_i: an estimate of the client's mean gradient."""

    variate: PyTree


class ScaffoldMessage(NamedTuple):
    """A client's message: y_i - x, and the change of its variate."""

    params: PyTree
    variate: PyTree


@part
class SCAFFOLD(FedAvg):
    """SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): every part of the
    model is shared; a client keeps a control variate, and sends its change beside the
    model's.

    Local steps follow g_i(y) - c_i + c, which reduces client drift. A client's new
    variate is the mean of its gradients, computed from its update without further
    gradients. Means are uniform, as in the paper: c is the mean of ALL clients' variates.
    With identical clients, full batches and full participation this is `FedAvg`.

    The paper's steps are plain SGD: K steps move by eta K times the mean gradient. With
    momentum they move by more, eta times the sum of the gradients' weights, and the
    variate is divided by that. FedRep's code divides by eta K also with its momentum of
    0.5: `counts_momentum=False`. After many steps the mean c is then twice too large, and
    with full participation the correction c - c_i alternates between almost zero and
    twice too much.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients, by `SGD` with a constant step size eta, by which
            variates are divided; weighting must be "uniform".
        server_step_size: eta_g; 1 in FedRep's table, but 0.5 on FEMNIST.
        counts_momentum: makes the variate a mean of gradients also with momentum; see
            above.

    Raises:
        ValueError: the optimizer has no constant step size.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.SCAFFOLD(model, srp.Training(srp.SGD(0.05))).name
        'scaffold'
    """

    sends_changes: ClassVar[bool] = True
    requires_uniform_weighting: ClassVar[bool] = True

    server_step_size: StepSize = 1.0
    counts_momentum: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step_size(self.training)

    @override
    def init(self, key: Key, data: Any) -> ScaffoldServerState:
        params = self.init_params(key, data)
        return ScaffoldServerState(params, jax.tree.map(jnp.zeros_like, params))

    @override
    def init_client(
        self, key: Key, server: ScaffoldServerState, examples: Examples
    ) -> ScaffoldClientState:
        return ScaffoldClientState(jax.tree.map(jnp.zeros_like, server.params))

    @override
    def broadcast(
        self, server: ScaffoldServerState, context: RoundContext
    ) -> ScaffoldServerState:
        return server

    @override
    def client(
        self,
        key: Key,
        params: ScaffoldServerState,
        state: Any,
        examples: Examples,
        context: RoundContext,
    ):
        x, c = params
        correction = jax.tree.map(jnp.subtract, c, state.variate)

        def corrected(objective: Objective, y: PyTree, weights: Array) -> PyTree:
            # g_i(y_i) + (c - c_i)
            gradient = plain_gradient(objective, y, weights)
            return jax.tree.map(jnp.add, gradient, correction)

        # y_i <- local SGD along that, from x
        local = self.local_sgd(key, x, examples, context, gradient=corrected)
        step = jax.tree.map(jnp.subtract, local.params, x)
        # c_i <- c_i - c + (x - y_i) / (K eta); unchanged without steps
        now = self.training.in_round(context)
        length = total_step(now, examples, self.counts_momentum)
        difference = lambda c, d: jnp.where(length > 0, -c - d, 0)
        change = jax.tree.map(difference, c, divide(step, length))
        variate = jax.tree.map(jnp.add, state.variate, change)
        return ClientOutput(
            message=ScaffoldMessage(step, change),
            state=ScaffoldClientState(variate),
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: ScaffoldServerState,
        mean: ScaffoldMessage,
        context: RoundContext,
    ):
        # x <- x + (eta_g / |S|) sum_i (y_i - x)
        add = lambda x, d: x + self.server_step_size * d
        params = jax.tree.map(add, server.params, mean.params)
        # Statistics of BatchNorm take the whole step.
        clients = jax.tree.map(jnp.add, server.params, mean.params)
        params = with_statistics_of(params, clients)
        # c <- c + (1 / N) sum_i (c_i+ - c_i)
        variate = mean_of_all(server.variate, mean.variate, context)
        return ScaffoldServerState(params, variate)

    @override
    def loss_gradient(
        self,
        key: Key,
        params: ScaffoldServerState,
        state: Any,
        examples: Examples,
        context: RoundContext,
    ):
        return super().loss_gradient(key, params.params, state, examples, context)
