"""AsyncSGD: an asynchronous server whose clients are drawn with given weights."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    ModelsOfStages,
    stacked,
    with_model,
)
from fedjax_srp.base import Array, ClientOutput, Examples, Key, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, StepSize, part


class AsyncSGDServerState(NamedTuple):
    """The global model w, and the model of each job."""

    params: SplitParams
    # Leaves (num_jobs, ...): the model with which the job was sent.
    sent: SplitParams
    versions: Array  # (num_jobs,) int32: the server's steps until then
    staleness: Array  # () float, tau: the server's steps since the last update's model


@part
class AsyncSGD(ModelsOfStages):
    """Generalized AsyncSGD (Leconte et al., 2024, Algorithm 1): every part of the model is
    shared, updates may be stale.

    For `participation.Queued(concurrency, weights)`, where a round is the delivery of the
    job in slot `context.stage`. Its client trains from the model with which the job was
    sent, however long it waited in the client's queue, and its update is multiplied by
    `context.importance`, 1 / (n p_i). Then the slot's next job is sent with the new
    model. In the paper an update is a gradient, `Training(steps=1)`. The staleness tau is
    the number of server steps since the job was sent, the metric `staleness`. With `Full`
    and one job this is `FedAvg` with a server step size.

    Evaluations: those of `FedAvg`.

    Args:
        training: of a job.
        server_step_size: eta_g, beside the step size of training.
        num_jobs: C, as `concurrency` of the policy; with fewer the model becomes nan and
            the run counts as diverged.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.AsyncSGD(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)), num_jobs=5)
        >>> options = {"participation": srp.participation.Queued(5), "num_rounds": 4, "progress": False}
        >>> history = srp.simulate(algorithm, data, key=jax.random.key(0), **options)
        >>> float(history.metrics["staleness"][0])
        0.0
    """

    sends_changes: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    server_step_size: StepSize = 1.0
    num_jobs: Count = 10

    @override
    def of_params(self, params: SplitParams) -> AsyncSGDServerState:
        each = stacked(params, self.num_jobs)
        versions = jnp.zeros(self.num_jobs, jnp.int32)
        return AsyncSGDServerState(params, each, versions, jnp.zeros(()))

    @override
    def client(
        self,
        key: Key,
        broadcast: SplitParams,
        state: tuple[()],
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from w_sent
        local = self.local_sgd(key, broadcast, examples, context)
        update = jax.tree.map(jnp.subtract, local.params, broadcast)
        importance = context.importance
        if importance is not None:
            # Delta_i = (w_i - w_sent) / (n p_i)
            scaled = lambda delta: importance.astype(delta.dtype) * delta
            update = jax.tree.map(scaled, update)
        return ClientOutput(
            message=update, weight=self.training.weight(examples), loss=local.loss
        )

    @override
    def server(
        self,
        key: Key,
        server: AsyncSGDServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        slot = context.stage
        step_size = jnp.where(slot < self.num_jobs, self.server_step_size, jnp.nan)
        # w <- w + eta_g Delta_i
        step = lambda w, delta: w + step_size.astype(w.dtype) * delta
        params = jax.tree.map(step, server.params, mean)
        return AsyncSGDServerState(
            params=params,
            # w_sent <- w
            sent=with_model(server.sent, slot, params),
            versions=server.versions.at[slot].set(context.round + 1),
            staleness=(context.round - server.versions[slot]).astype(float),
        )

    @override
    def metrics(self, server: AsyncSGDServerState, data: Any) -> dict[str, Array]:
        return {"staleness": server.staleness}
