"""MIFA: FedAvg over the last updates of all clients, also of those away."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import mean_of_all
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class MIFAServerState(NamedTuple):
    """The global model w, and means over all clients: of G_i and of `reported`."""

    params: SplitParams
    update: PyTree
    reported: Array  # ()


class MIFAClientState(NamedTuple):
    """G_i: the client's last update, which the server keeps; 0 before the first."""

    update: PyTree
    reported: Array  # () bool


class MIFAMessage(NamedTuple):
    """The change of G_i, and whether it is the client's first update."""

    change: PyTree
    is_first: Uncharged


@part
class MIFA(FedAvg):
    """MIFA (Gu et al., 2021, Algorithm 1), memory-augmented impatient federated
    averaging: every part of the model is shared; the server keeps each client's last
    update.

    In every round the server moves along the mean of all clients' last updates, whoever
    takes part: clients that are often away count as much as others. It does not move in a
    round without participants; in the paper it does. In the paper all clients take part
    in the first round. Here the mean is over the clients that have reported at least
    once, which is the same in that case. With full participation this is `FedAvg`. Only
    models are sent. Means are uniform, as in the paper. Under a schedule an update that
    is remembered keeps the step size with which it was made; in the paper it takes the
    present one.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients; weighting must be "uniform".

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.MIFA(model, srp.Training(epochs=5)).name
        'mifa'
    """

    sends_changes: ClassVar[bool] = True
    requires_uniform_weighting: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    @override
    def init(self, key: Key, data: Any) -> MIFAServerState:
        params = self.init_params(key, data)
        update = jax.tree.map(jnp.zeros_like, params)
        return MIFAServerState(params, update, jnp.zeros(()))

    @override
    def init_client(
        self, key: Key, server: MIFAServerState, examples: Examples
    ) -> MIFAClientState:
        update = jax.tree.map(jnp.zeros_like, server.params)
        return MIFAClientState(update, jnp.bool_(False))

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: MIFAClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        local = super().client(key, params, (), examples, context)  # w_i
        # G_i <- w_i - w; in the paper divided by -eta, by which the server multiplies
        update = jax.tree.map(jnp.subtract, local.message, params)
        change = jax.tree.map(jnp.subtract, update, state.update)
        is_first = (~state.reported).astype(float)
        return local._replace(
            message=MIFAMessage(change, Uncharged(is_first)),
            state=MIFAClientState(update, jnp.bool_(True)),
        )

    @override
    def server(
        self, key: Key, server: MIFAServerState, mean: MIFAMessage, context: RoundContext
    ) -> MIFAServerState:
        # Means over all clients: of G_i, and of whether they have reported.
        update = mean_of_all(server.update, mean.change, context)
        reported = mean_of_all(server.reported, mean.is_first.value, context)
        # w <- w + mean of G_i over the clients that have reported
        step = lambda w, g: w + g / reported.astype(g.dtype)
        params = jax.tree.map(step, server.params, update)
        return MIFAServerState(params, update, reported)
