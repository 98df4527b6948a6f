"""FedAvgM, FedAdagrad, FedAdam and FedYogi: FedAvg with an optimizer at the server."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.base import Array, Key, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, AtLeast, Below, StepSize, part


class FedOptServerState(NamedTuple):
    """The global model x, its momentum m, accumulated squares v (0 under momentum)."""

    params: SplitParams
    m: SplitParams
    v: SplitParams


@part
class FedOpt(FedAvg):
    """FedOpt (Reddi et al., 2021, Algorithm 2; FedAvgM: Hsu et al., 2019): every part of
    the model is shared.

    Clients train as in `FedAvg`. The server's optimizer takes their mean update, Delta =
    mean x_i - x, as an ascent direction. As in the paper's algorithm, m and v have no
    bias correction, and v starts at tau^2. With `rule="momentum"`, `beta1=0` and a server
    step size of 1 this is `FedAvg`.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients; the paper has SGD and weighs clients by their examples.
        rule: "momentum" (FedAvgM), "adagrad", "adam" or "yogi".
        server_step_size: eta. The paper tunes it for each task, together with that of the
            clients; 0.01 is our choice.
        beta1: of m: 0.9 in the paper, but 0 for FedAdagrad.
        beta2: of v in FedAdam and FedYogi: 0.99 in the paper.
        adaptivity: tau, added to the root of v: 0.001 in most of the paper's experiments.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedOpt(model, rule="yogi", server_step_size=0.01).rule
        'yogi'
    """

    supports_batch_norm: ClassVar[bool] = False

    rule: Literal["momentum", "adagrad", "adam", "yogi"] = "adam"
    server_step_size: StepSize = 0.01
    beta1: Annotated[float, AtLeast(0), Below(1)] = 0.9
    beta2: Annotated[float, AtLeast(0), Below(1)] = 0.99
    adaptivity: Annotated[float, Above(0)] = 1e-3

    @override
    def init(self, key: Key, data: Any) -> FedOptServerState:
        params = self.init_params(key, data)
        zeros = jax.tree.map(jnp.zeros_like, params)
        if self.rule == "momentum":
            return FedOptServerState(params, zeros, zeros)
        # v = tau^2
        squares = jax.tree.map(lambda w: jnp.full_like(w, self.adaptivity**2), params)
        return FedOptServerState(params, zeros, squares)

    @override
    def server(
        self,
        key: Key,
        server: FedOptServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        delta = jax.tree.map(jnp.subtract, mean, server.params)
        if self.rule == "momentum":
            # m <- beta_1 m + Delta;  x <- x + eta m
            accumulate = lambda m, d: self.beta1 * m + d
            m = jax.tree.map(accumulate, server.m, delta)
            return FedOptServerState(self._moved(server.params, m), m, server.v)
        # m <- beta_1 m + (1 - beta_1) Delta
        average = lambda m, d: self.beta1 * m + (1 - self.beta1) * d
        m = jax.tree.map(average, server.m, delta)
        v = jax.tree.map(self._squares, server.v, delta)
        # x <- x + eta m / (sqrt(v) + tau)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + self.adaptivity), m, v)
        return FedOptServerState(self._moved(server.params, direction), m, v)

    def _moved(self, params: SplitParams, direction: SplitParams) -> SplitParams:
        return jax.tree.map(lambda x, d: x + self.server_step_size * d, params, direction)

    def _squares(self, v: Array, delta: Array) -> Array:
        square = jnp.square(delta)
        if self.rule == "adagrad":
            return v + square
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        return v - (1 - self.beta2) * square * jnp.sign(v - square)
