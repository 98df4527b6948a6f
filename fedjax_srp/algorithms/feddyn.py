"""FedDyn: FedAvg with a dynamic regularizer, which corrects client drift."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import Objective, plain_gradient
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, part


class FedDynServerState(NamedTuple):
    """The global model w, and h, the server's correction of the mean model."""

    params: SplitParams
    h: PyTree


class FedDynClientState(NamedTuple):
    """h_i: the gradient at the client's last model, if training reached a minimum."""

    h: PyTree


@part
class FedDyn(FedAvg):
    """FedDyn (Acar et al., 2021, Algorithm 1): every part of the model is shared; a
    client keeps a gradient h_i.

    A participant descends `f_i(w_i) - <h_i, w_i> + (alpha / 2) |w_i - w|^2`, so that the
    mean gradient is zero at a fixed point. Only models are sent. Means are uniform, as in
    the paper. As alpha goes to 0, clients train as in `FedAvg`, but for any alpha the
    server adds to their mean the sum of its moves from w, over all rounds so far.

    Momentum and weight decay of the optimizer act on the regularized loss.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients; weighting must be "uniform".
        penalty: alpha, of the regularizer; the paper tunes it in {0.1, 0.01, 0.001}, the
            authors' example on CIFAR-10 has 0.01.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedDyn(model, penalty=0.1).name
        'feddyn'
    """

    requires_uniform_weighting: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    penalty: Annotated[float, Above(0), "give a small number, e.g. 0.01"] = 0.01

    @override
    def init(self, key: Key, data: Any) -> FedDynServerState:
        params = self.init_params(key, data)
        return FedDynServerState(params, jax.tree.map(jnp.zeros_like, params))

    @override
    def init_client(
        self, key: Key, server: FedDynServerState, examples: Examples
    ) -> FedDynClientState:
        return FedDynClientState(jax.tree.map(jnp.zeros_like, server.params))

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: Any,
        examples: Examples,
        context: RoundContext,
    ):
        def dynamic(objective: Objective, local: PyTree, weights: Array) -> PyTree:
            # grad f_i(w_i) - h_i + alpha (w_i - w)
            gradient = plain_gradient(objective, local, weights)
            correct = lambda g, h, w_i, w: g - h + self.penalty * (w_i - w)
            return jax.tree.map(correct, gradient, state.h, local, params)

        # w_i <- local SGD along that, from w
        local = self.local_sgd(key, params, examples, context, gradient=dynamic)
        # h_i <- h_i - alpha (w_i - w)
        move = lambda h, w_i, w: h - self.penalty * (w_i - w)
        h = jax.tree.map(move, state.h, local.params, params)
        return ClientOutput(local.params, FedDynClientState(h), loss=local.loss)

    @override
    def server(
        self,
        key: Key,
        server: FedDynServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        # h <- h - (alpha / N) sum_i (w_i - w), over the participants
        share = self.penalty * context.cohort_size.astype(float) / context.num_clients
        correct = lambda h, w_i, w: h - share.astype(w.dtype) * (w_i - w)
        h = jax.tree.map(correct, server.h, mean, server.params)
        # w <- mean w_i - h / alpha
        params = jax.tree.map(lambda w_i, h: w_i - h / self.penalty, mean, h)
        return FedDynServerState(params, h)
