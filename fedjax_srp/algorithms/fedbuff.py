"""FedBuff: an asynchronous server takes a step when k updates have arrived."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    Phase,
    RoundContext,
    unchanged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, StepSize, part


class FedBuffClientState(NamedTuple):
    """The model w_stale of the client's job, and the number of server steps in it."""

    params: SplitParams
    version: Array  # () int32


@part
class FedBuff(GlobalModel):
    """FedBuff (Nguyen et al., 2022, Algorithm 1): every part of the model is shared,
    updates may be stale.

    For `participation.Buffered(k)`, where a round is a server step. A client trains from
    the model that it downloaded when its job began, and downloads a new one after the
    server step that uses its update. The staleness tau is the number of rounds in
    between, all of them server steps except those without reports, where clients fail;
    its mean over the updates is recorded as `staleness`. The batches are drawn for the
    round that uses the update. With `Full`, where tau = 0, and a server step size of 1
    this is `FedAvg`.

    The paper keeps a limited number of clients busy, `Buffered(k, concurrency=M)`.
    `FedAsync` moves towards the client's model; here w moves by w_i - w_stale.

    Evaluations: `global` (the default), the model as it is; `fine_tune`, its head trained
    on the client for `fine_tune_epochs`; `fine_tune_all`, all its layers trained.

    Args:
        training: of a job; weighting is "uniform" in the paper.
        server_step_size: eta_g.
        staleness_exponent: a in s(tau) = (1 + tau)^-a; 0.5 in the paper; with 0 all
            updates weigh the same.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.FedBuff(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)))
        >>> options = {"participation": srp.participation.Buffered(5), "num_rounds": 3, "progress": False}
        >>> history = srp.simulate(algorithm, data, key=jax.random.key(0), **options)
        >>> float(history.metrics["staleness"][0])
        0.0
    """

    sends_changes: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    server_step_size: StepSize = 1.0
    staleness_exponent: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 0.5"] = 0.5

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> FedBuffClientState:
        return FedBuffClientState(server.params, jnp.int32(0))

    @override
    def broadcast(self, server: Any, context: RoundContext) -> Any:
        return ()  # the client already has its model

    def staleness(
        self, broadcast: Any, state: FedBuffClientState, context: RoundContext
    ) -> Array:
        """The server's steps tau since the client's job began, () float."""
        return (context.round - state.version).astype(float)

    @override
    def client(
        self,
        key: Key,
        broadcast: Any,
        state: FedBuffClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from w_stale
        local = self.local_sgd(key, state.params, examples, context)
        # s(tau) = (1 + tau)^-a
        staleness = self.staleness(broadcast, state, context)
        discount = (1.0 + staleness) ** -self.staleness_exponent
        # Delta_i = s(tau) (w_i - w_stale)
        discounted = lambda w, old: discount.astype(w.dtype) * (w - old)
        update = jax.tree.map(discounted, local.params, state.params)
        return ClientOutput(
            message=update,
            weight=self.training.weight(examples),
            info={"staleness": staleness},
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: Any,
        mean: SplitParams,
        context: RoundContext,
    ) -> Any:
        # w <- w + eta_g (1/k) sum_i Delta_i
        step = lambda w, delta: w + self.server_step_size * delta
        return FedAvgServerState(jax.tree.map(step, server.params, mean))

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # Clients that begin a job download the new model: those whose updates were used,
        # or others, as the policy says.
        download = Phase("finish", self.job, self.begin_job, unchanged, over="next")
        return (*super().phases, download)

    def job(self, server: Any, context: RoundContext) -> Any:
        """The download of a client that begins a job."""
        return server.params

    def begin_job(
        self,
        key: Key,
        job: Any,
        state: FedBuffClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Keep the downloaded model for the next job."""
        # w_stale <- w
        return ClientOutput((), FedBuffClientState(job, context.round + 1))
