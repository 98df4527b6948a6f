"""FedVARP: FedAvg whose server remembers each client's last update."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import mean_of_all
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.base import ClientOutput, Examples, Key, PyTree, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import StepSize, part


class FedVARPServerState(NamedTuple):
    """The global model w, and y: the mean over all clients of their last updates."""

    params: SplitParams
    update: PyTree


class FedVARPClientState(NamedTuple):
    """y_i: the client's last update, which the server keeps; 0 before the first."""

    update: PyTree


@part
class FedVARP(FedAvg):
    """FedVARP (Jhunjhunwala et al., 2022, Algorithm 1): every part of the model is
    shared; the server keeps each client's last update.

    The mean update of the participants is corrected by what the server remembers of them
    and of all clients, as SAGA corrects a gradient. With participants drawn uniformly the
    corrected update is unbiased, and the variance that sampling adds vanishes as updates
    settle. With full participation this is `FedAvg`. Only models are sent. Means are
    uniform, as in the paper.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients; weighting must be "uniform".
        server_step_size: eta_s, of the server's step along the corrected update.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedVARP(model, srp.Training(epochs=5)).name
        'fedvarp'
    """

    sends_changes: ClassVar[bool] = True
    requires_uniform_weighting: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    server_step_size: StepSize = 1.0

    @override
    def init(self, key: Key, data: Any) -> FedVARPServerState:
        params = self.init_params(key, data)
        return FedVARPServerState(params, jax.tree.map(jnp.zeros_like, params))

    @override
    def init_client(
        self, key: Key, server: FedVARPServerState, examples: Examples
    ) -> FedVARPClientState:
        return FedVARPClientState(jax.tree.map(jnp.zeros_like, server.params))

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedVARPClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        local = super().client(key, params, (), examples, context)  # w_i
        # Delta_i = w_i - w
        update = jax.tree.map(jnp.subtract, local.message, params)
        # y_i <- Delta_i
        change = jax.tree.map(jnp.subtract, update, state.update)
        return local._replace(message=change, state=FedVARPClientState(update))

    @override
    def server(
        self, key: Key, server: FedVARPServerState, mean: PyTree, context: RoundContext
    ) -> FedVARPServerState:
        # v = y + (1 / |S|) sum_{i in S} (Delta_i - y_i)
        v = jax.tree.map(jnp.add, server.update, mean)
        # w <- w + eta_s v
        step = lambda w, v: w + self.server_step_size * v
        params = jax.tree.map(step, server.params, v)
        # y <- y + (1 / N) sum_{i in S} (Delta_i - y_i)
        return FedVARPServerState(params, mean_of_all(server.update, mean, context))
