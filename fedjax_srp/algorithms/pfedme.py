"""pFedMe: personal models by Moreau envelopes, which move the global model."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    FedAvgServerState,
    GlobalAndPersonalModel,
    Penalty,
    PersonalState,
)
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import Objective, local_sgd, plain_gradient
from fedjax_srp.algorithms.optimizers import Optimizer
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    named_key,
)
from fedjax_srp.models.normalization import with_statistics_of
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, Count, StepSize, part


class Both(NamedTuple):
    """The trained parameters: the client's copy w_i of the global model, and theta_i."""

    w: SplitParams
    theta: SplitParams


@part
class Envelope(Optimizer):
    """Steps of w_i by an optimizer; the "gradient" of theta_i is its new value.

    Args:
        of_w: the optimizer of w_i.
    """

    of_w: Optimizer

    @override
    def init(self, params: Both) -> PyTree:
        return self.of_w.init(params.w)

    @override
    def update(self, gradient: Both, state: PyTree, params: Both) -> tuple[Both, PyTree]:
        step, state = self.of_w.update(gradient.w, state, params.w)
        difference = jax.tree.map(jnp.subtract, gradient.theta, params.theta)
        return Both(step, difference), state


@part
class PFedMe(GlobalAndPersonalModel):
    """pFedMe (Dinh, Tran and Nguyen, 2020, Algorithm 1): a global model, and a personal
    one of every client near it.

    On every batch, one of the paper's local rounds, theta_i takes K gradient steps on
    `f_i(theta) + (lambda / 2) |theta - w_i|^2`, and w_i one step along lambda (w_i -
    theta_i), the gradient of the envelope at w_i. Participants send w_i. As in the
    authors' code, theta_i starts a round at the global model and continues from batch to
    batch; the paper needs a minimum up to an accuracy, from any start. With lambda = 0
    the global model stays constant, and theta_i is the global model after K steps a batch
    on the client alone.

    Evaluations: `own_model` (the default), the personal model; `global`, `fine_tune` (its
    head) and `fine_tune_all`, as in `FedAvg`.

    Args:
        training: of w_i; its step size is the paper's eta.
        penalty: lambda, 15 in most of the paper's experiments.
        inner_steps: K, 5 in the paper.
        inner_step_size: alpha, of the K steps of plain gradient descent; 0.09 in runs of
            the authors' code on MNIST.
        server_step_size: beta, of the global model's step towards the mean: 1 in most
            experiments, 2 in others.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.PFedMe(model, penalty=15.0).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    penalty: Penalty = 15.0
    inner_steps: Count = 5
    inner_step_size: Annotated[float, Above(0), "give a step size, e.g. 0.05"] = 0.09
    server_step_size: StepSize = 1.0

    loss_gradient = FedAvg.loss_gradient

    @property
    @override
    def gradient(self) -> ClientFunction:
        return self.loss_gradient

    def loss_of_theta(
        self, both: Both, frozen: PyTree, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of each example under the personal model, (batch,)."""
        return self.loss(both.theta, frozen, x, y, key)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: Any,
        examples: Examples,
        context: RoundContext,
    ):
        def of_envelope(objective: Objective, both: Both, weights: Array) -> Both:
            def step(_: Any, theta: SplitParams) -> SplitParams:
                # theta_i <- theta_i - alpha (grad f_i(theta_i) + lambda (theta_i - w_i))
                gradient = plain_gradient(objective, Both(both.w, theta), weights).theta
                pull = lambda g, t, w: g + self.penalty * (t - w)
                slope = jax.tree.map(pull, gradient, theta, both.w)
                move = lambda t, s: t - self.inner_step_size * s
                return jax.tree.map(move, theta, slope)

            theta = jax.lax.fori_loop(0, self.inner_steps, step, both.theta)
            # w_i <- w_i - eta lambda (w_i - theta_i)
            slope = jax.tree.map(lambda w, t: self.penalty * (w - t), both.w, theta)
            return Both(slope, theta)

        now = self.training.in_round(context)
        now = now._replace(optimizer=Envelope(now.optimizer))
        local = local_sgd(
            named_key(key, "local"),
            self.loss_of_theta,
            Both(params, params),
            (),
            examples,
            now,
            gradient=of_envelope,
        )
        trained: Both = local.params
        return ClientOutput(
            # Only theta_i has seen examples, so the statistics of BatchNorm are its.
            message=with_statistics_of(trained.w, trained.theta),
            state=PersonalState(trained.theta),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        # w <- (1 - beta) w + beta sum_i p_i w_i
        beta = self.server_step_size
        move = lambda w, m: (1 - beta) * w + beta * m
        params = jax.tree.map(move, server.params, mean)
        return FedAvgServerState(with_statistics_of(params, mean))
