"""FedAsync: an asynchronous server steps towards every arriving model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, Penalty
from fedjax_srp.algorithms.fedbuff import FedBuff, FedBuffClientState
from fedjax_srp.algorithms.fedprox import proximal_gradient
from fedjax_srp.base import Array, ClientOutput, Examples, Key, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, AtLeast, AtMost, part


@part
class FedAsync(FedBuff):
    """FedAsync (Xie, Koyejo and Gupta, 2019, Algorithm 1): every part of the model is
    shared, models may be stale.

    For `participation.Buffered(1)`, where a round is the arrival of one model. A client
    trains from the model that it downloaded when its job began, with a proximal term to
    it, and the server moves towards the result, less for older models. The staleness tau
    is counted as in `FedBuff`, 0 for a model that is still the server's. With a larger
    buffer the server moves towards the mean of the models, each weighted by s(tau). With
    `Full`, alpha = 1 and mu = 0, this is `FedAvg`. A client sends s(tau) with the model.

    Evaluations: those of `FedBuff`.

    Args:
        training: of a job; weighting is "uniform" in the paper.
        server_step_size: alpha, in (0, 1].
        staleness_exponent: a of the polynomial, s(tau) = (1 + tau)^-a.
        discount: s; "constant" is 1, "hinge" is 1 up to b and then 1 / (a (tau - b) + 1).
        hinge_slope: a of the hinge.
        hinge_start: b of the hinge, server steps.
        mu: rho, weight of the proximal term `(mu / 2) |w - w_stale|^2`; 0 for none.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> algorithm = srp.algorithms.FedAsync(model, discount="hinge", hinge_slope=1.0, hinge_start=2.0)
        >>> [round(float(algorithm.weight_of(jnp.float32(tau))), 2) for tau in (0, 2, 3, 5)]
        [1.0, 1.0, 0.5, 0.25]
    """

    sends_changes: ClassVar[bool] = False
    supports_batch_norm: ClassVar[bool] = True  # the new model is a mean of models

    server_step_size: Annotated[
        float, Above(0), AtMost(1), "give a share of the way, e.g. 0.6"
    ] = 0.6
    discount: Literal["constant", "hinge", "polynomial"] = "polynomial"
    hinge_slope: Annotated[float, AtLeast(0), "give a number, e.g. 10.0"] = 10.0
    hinge_start: Annotated[
        float, AtLeast(0), "give a number of server steps, e.g. 4.0"
    ] = 4.0
    mu: Penalty = 0.005

    def weight_of(self, staleness: Array) -> Array:
        """s(tau), () float: weight of an old model."""
        if self.discount == "constant":
            return jnp.ones_like(staleness)
        if self.discount == "hinge":
            excess = jnp.maximum(staleness - self.hinge_start, 0.0)
            return 1.0 / (self.hinge_slope * excess + 1.0)
        return (1.0 + staleness) ** -self.staleness_exponent

    @override
    def client(
        self,
        key: Key,
        broadcast: tuple,
        state: FedBuffClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD on f_i(w) + (rho / 2) |w - w_stale|^2, from w_stale
        gradient = proximal_gradient(self.mu, state.params)
        local = self.local_sgd(key, state.params, examples, context, gradient=gradient)
        staleness = self.staleness(broadcast, state, context)
        s = self.weight_of(staleness)
        scaled = jax.tree.map(lambda w: s.astype(w.dtype) * w, local.params)
        return ClientOutput(
            message=(scaled, s),
            weight=self.training.weight(examples),
            info={"staleness": staleness},
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: tuple[SplitParams, Array],
        context: RoundContext,
    ):
        scaled, s = mean
        # w <- (1 - alpha s) w + alpha s w_i
        step = lambda w, sw: w + self.server_step_size * (sw - s.astype(w.dtype) * w)
        return FedAvgServerState(jax.tree.map(step, server.params, scaled))
