"""An asynchronous server whose clients have queues of jobs."""

from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Cohort, JobsBy, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import make_cohort
from fedjax_srp.parts.checks import INT32_MAX
from fedjax_srp.parts.part import Above, AtLeast, AtMost, part


class QueuedState(NamedTuple):
    """All jobs, each in a slot, at the last server step."""

    owner: Array  # (concurrency,) int32: the client in whose queue the job is
    # (concurrency,) int32: grows from job to job; a client's least is the next
    ticket: Array
    # (num_clients,) float, time until the client's job ends; unused if a job begins or there is none
    remaining: Array
    # (num_clients,) bool: clients that begin the next job of their queue now, if they have one
    begins: Array


@part
class Queued(ParticipationPolicy):
    """Clients work off queues of jobs; a round is one server step, with the job that ends first.

    Generalized AsyncSGD (Leconte, Jonckheere, Samsonov and Moulines, 2024): `concurrency` jobs are
    in the system at any time. When one is delivered, the server steps and sends the new model to a
    client that is drawn with given weights, busy or not. There the job waits in the client's queue,
    first come, first served, so that a client may hold several. With equal weights it is AsyncSGD
    (Koloskova, Stich and Jaggi, 2022). The first jobs are drawn with the same weights.

    In the long run each client delivers in proportion to its weight, whatever its speed; small
    weights of slow clients make jobs less stale. `Cohort.importance` has 1 / (n p_i), n clients
    drawn with probabilities p_i, by which the algorithm `AsyncSGD` multiplies the client's update,
    so that the mean update is that of equal weights. `Cohort.stage` is the slot of the job. With an
    algorithm that does not keep the models of the slots a participant trains on another model, and
    the run warns.

    A job takes the realised time of the round in which its work begins. Clocks under which clients
    come and go are refused, and so is a communication cost afterwards: give it to the clock,
    `clocks.Fixed(..., communication=10)`.

    Args:
        concurrency: C, jobs in the system.
        weights: (num_clients,) positive floats, in proportion to which clients are drawn; one number
            for equal ones.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Queued(3, weights=[1.0, 1e-9])
        >>> times = jnp.array([2.0, 5.0])
        >>> state = policy.init(jax.random.key(0), 2)
        >>> for _ in range(3):  # all jobs are in the queue of one client
        ...     now = srp.ClientTimes(times, times)
        ...     cohort, state = policy.select(jax.random.key(1), state, now)
        ...     print(cohort.client_ids.tolist(), int(cohort.stage), float(cohort.duration))
        [0] 0 2.0
        [0] 1 2.0
        [0] 2 2.0
    """

    asynchronous: ClassVar[bool] = True
    jobs_by: ClassVar[tuple[JobsBy, ...]] = ("stage",)
    concurrency: Annotated[int, AtLeast(1), AtMost(1_000_000)] = 10
    weights: Annotated[
        float | jax.Array | np.ndarray,
        Above(0),
        "give one positive weight per client, such as its number of examples",
    ] = 1.0

    @override
    def init(self, key: Key, num_clients: int) -> QueuedState:
        logits = self._log_weights(num_clients)
        owner = jax.random.categorical(key, logits, shape=(self.concurrency,))
        return QueuedState(
            owner=owner.astype(jnp.int32),
            ticket=jnp.arange(self.concurrency, dtype=jnp.int32),
            remaining=jnp.zeros(num_clients),
            begins=jnp.ones(num_clients, jnp.bool_),
        )

    def _log_weights(self, num_clients: int) -> Array:
        weights = jnp.asarray(self.weights, dtype=float)
        if weights.ndim and len(weights) != num_clients:
            raise ValueError(
                f"queued: weights have {len(weights)} entries for num_clients={num_clients}; "
                "give one per client"
            )
        return jnp.broadcast_to(jnp.log(weights), num_clients)

    @override
    def select(
        self, key: Key, state: QueuedState, times: ClientTimes
    ) -> tuple[Cohort, QueuedState]:
        """The client whose job ends first, with that job."""
        num_clients = times.realised.shape[0]
        # r_i <- T_i where a job begins
        remaining = jnp.where(state.begins, times.realised, state.remaining)
        has_job = jnp.zeros(num_clients, jnp.bool_).at[state.owner].set(True)
        client = jnp.argmin(jnp.where(has_job, remaining, jnp.inf)).astype(jnp.int32)
        duration = remaining[client]
        tickets = jnp.where(state.owner == client, state.ticket, INT32_MAX)
        slot = jnp.argmin(tickets).astype(jnp.int32)
        # a new job, for a client drawn with probability p
        logits = self._log_weights(num_clients)
        drawn = jax.random.categorical(key, logits).astype(jnp.int32)
        cohort = make_cohort(client[None], stage=slot)
        importance = jnp.exp(-jax.nn.log_softmax(logits)[client]) / num_clients
        state = QueuedState(
            owner=state.owner.at[slot].set(drawn),
            ticket=state.ticket.at[slot].set(state.ticket.max() + 1),
            # r_i <- r_i - d
            remaining=remaining - duration,
            begins=~has_job.at[client].set(False),
        )
        return cohort._replace(duration=duration, importance=importance[None]), state
