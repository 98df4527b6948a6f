"""FedCompass: an asynchronous server steps with groups of clients that arrive together."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import mean_of_all
from fedjax_srp.algorithms.fedbuff import FedBuff, FedBuffClientState
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import StepSize, part

LATE = 1  # the stage of a client that is too late for its group
FIRST = 2  # the stage of a client's first update


class FedCompassServerState(NamedTuple):
    """The global model w, and the general buffer."""

    params: SplitParams
    late: SplitParams  # sum of (1 / N) Delta_i that wait for the next group
    steps: Array  # () int32: steps of the server


class Job(NamedTuple):
    """The download of a client that begins a job."""

    params: SplitParams
    steps: Uncharged  # the server knows them


@part
class FedCompass(FedBuff):
    """FedCompass (Li, Chaturvedi, He et al., 2024), after its authors' code: every part of
    the model is shared, updates may be stale.

    For `participation.Compass`, which gives clients so much work that they arrive in
    groups. When a group ends, the server moves by the sum of its clients' updates and of
    those in a buffer, each weighted by 1 / N and s(tau). The update of a client that was
    too late for its group (`context.stage` 1) goes into the buffer, and the client begins
    its next job with the model as it is. A first update (stage 2) moves the server alone.
    The staleness tau is the number of the server's steps since the client's job began,
    its mean over the updates the metric `staleness`. With `Full` and a server step size
    of 1 this is `FedAvg`. Policies whose stages mean something else do not fit.

    Evaluations: those of `FedBuff`.

    Args:
        training: of a job, for a unit of its work; weighting is "uniform".
        server_step_size: alpha, 0.9 in the authors' code.
        staleness_exponent: a in s(tau) = (1 + tau)^-a; 0.5 in the authors' code.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.FedCompass(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)))
        >>> options = {"participation": srp.participation.Compass(), "num_rounds": 2, "progress": False}
        >>> history = srp.simulate(algorithm, data, key=jax.random.key(0), **options)
        >>> history.metrics["staleness"].tolist()
        [0.0, 1.0]
    """

    requires_uniform_weighting: ClassVar[bool] = True

    server_step_size: StepSize = 0.9

    @override
    def init(self, key: Key, data: Any) -> FedCompassServerState:
        params = self.init_params(key, data)
        nothing_late = jax.tree.map(jnp.zeros_like, params)
        return FedCompassServerState(params, nothing_late, jnp.int32(0))

    @override
    def broadcast(
        self, server: FedCompassServerState, context: RoundContext
    ) -> Uncharged:
        return Uncharged(server.steps)

    @override
    def staleness(
        self, broadcast: Uncharged, state: FedBuffClientState, context: RoundContext
    ) -> Array:
        return (broadcast.value - state.version).astype(float)

    @override
    def server(
        self,
        key: Key,
        server: FedCompassServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        is_late = context.stage == LATE
        is_first = context.stage == FIRST
        # Delta <- Delta + (1 / N) sum_i Delta_i
        waiting = mean_of_all(server.late, mean, context)

        def moved(w: Array, old: Array, new: Array) -> Array:
            # w <- w + alpha Delta; an update that is late only waits, a first one moves w alone
            delta = jnp.where(is_late, 0, jnp.where(is_first, new - old, new))
            return w + self.server_step_size * delta

        def kept(old: Array, new: Array) -> Array:
            # Delta <- 0 once it is used
            return jnp.where(is_late, new, jnp.where(is_first, old, 0))

        return FedCompassServerState(
            params=jax.tree.map(moved, server.params, server.late, waiting),
            late=jax.tree.map(kept, server.late, waiting),
            steps=server.steps + (~is_late).astype(jnp.int32),
        )

    @override
    def job(self, server: FedCompassServerState, context: RoundContext) -> Job:
        return Job(server.params, Uncharged(server.steps))

    @override
    def begin_job(
        self,
        key: Key,
        job: Job,
        state: FedBuffClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        # w_stale <- w
        return ClientOutput((), FedBuffClientState(job.params, job.steps.value))
