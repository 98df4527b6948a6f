"""FedRep on linear tasks: SRPFL's Algorithm 2 without its participation."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_srp.base import (
    Array,
    Charges,
    ClientOutput,
    Key,
    Personalize,
    Phase,
    RoundContext,
    Uncharged,
    evaluation,
)
from fedjax_srp.linear import (
    LinearClient,
    least_squares,
    method_of_moments,
    orthonormalize,
    principal_angle_distance,
    samplers,
)
from fedjax_srp.linear.algorithm import LinearAlgorithm, LinearModel, outputs
from fedjax_srp.linear.subspace import exact_matmul
from fedjax_srp.linear.task import LinearTask
from fedjax_srp.parts.checks import check_integer
from fedjax_srp.parts.part import Count, StepSize, field, part
from fedjax_srp.xla.loops import fori_loop, most_work


class LinearFedRepServerState(NamedTuple):
    """The representation, and the truth from which samples are drawn."""

    representation: Array  # (d, k) B, orthonormal columns
    truth: Array  # (d, k) B*, for the sampler alone


class LinearFedRepClientState(NamedTuple):
    """The personal head, kept between rounds if it is trained by gradient steps."""

    head: Array  # (k,) w_i


class LinearFedRepBroadcast(NamedTuple):
    """The download, and the position of B relative to B*, for the sampler."""

    representation: Array  # (d, k) B
    position: Uncharged


def _as_head(head: Any) -> Any:
    if isinstance(head, str) and head == "exact":
        return head
    return check_integer("head", head, 1, otherwise="'exact'")


@part
class LinearFedRep(LinearAlgorithm):
    """FedRep on a linear task (SRPFL, Algorithm 2, lines 8 to 14): a shared subspace B, personal heads w_i.

    In a round a participant draws m samples, fits its head, and takes one gradient step on the representation; the
    server averages the representations and orthonormalises the mean. Metric `distance`: dist(B, B*) after every round.
    With `head=1` and `head=10` it is GD-GD and 10GD-GD of the FedRep paper (figure 3).

    `sampling`: "full" draws the samples, (m, d) per client and round. "subspace" draws a round's mean from its exact
    distribution, from about k^2 numbers per client and one (d, k) matrix (`srp.linear.samplers`), so that its cost
    hardly depends on d or m. "fixed" keeps one batch per client for the whole run, the same in every run on the task.

    Evaluations, squared error, smaller is better: `fit_head`, a head fitted to `evaluation_samples` of the client under
    the current representation, as for a new client; if heads are trained by gradient steps, also `own_head`, the
    client's head as it last left it.

    A head that the batch does not determine (m < k, duplicate samples) is the least-squares solution of smallest norm.

    Args:
        task: only its shapes are used; `simulate` brings the values.
        step_size: eta; the theory has eta <= 1 / (8 sigma_max^2), see `srp.theory.max_step_size`.
        samples_per_round: m.
        head: "exact" least squares, or the number of gradient steps per unit of work, from the client's last head.
        sampling: "subspace", "full" or "fixed".
        start: "moments", the method of moments over a batch of ALL clients (lines 1 to 5; (m, d) samples and a d x d
            matrix per client, for any `sampling`), or "random", a uniformly distributed subspace.
        charge_start: charge the start by moments, in which every client sends d x d numbers: the run begins when the
            slowest one has answered (`History.start`), and at a communication cost. False: it is free, as papers have
            it, which name no time for it. A random start costs nothing.
        head_step_size: of the gradient steps of the head; default `step_size`.
        evaluation_samples: of `fit_head`; default m. "fixed" sampling draws them from the client's own key, always the
            same ones; with the default they are its batch.

    Raises:
        ValueError: a field is out of range, or the d x d matrix of "moments" is too large; in `init`, data have other
            shapes.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> task = srp.data.linear_task(jax.random.key(0), num_clients=64, dim=20, rank=2, noise_std=0.1)
        >>> algorithm = srp.algorithms.LinearFedRep(task, step_size=0.1, samples_per_round=10)
        >>> history = srp.simulate(algorithm, task, num_rounds=50, key=jax.random.key(1), progress=False)
        >>> bool(history.metrics["distance"][-1] < 0.05)
        True
    """

    name: ClassVar[str] = "linear_fedrep"

    samples_per_round: Count
    head: Literal["exact"] | Any = field(
        converter=_as_head, default="exact"
    )  # or an integer
    sampling: Literal["subspace", "full", "fixed"] = "subspace"
    start: Literal["moments", "random"] = "moments"
    charge_start: bool = False
    head_step_size: StepSize | None = None
    evaluation_samples: Count | None = None

    def __post_init__(self) -> None:
        _ = self.start_phases  # refuses matrices that are too large
        if self.sampling == "subspace" and self.task.design != "gaussian":
            raise ValueError(
                f"sampling='subspace': it is exact for Gaussian inputs only, the task has "
                f"design={self.task.design!r}; give sampling='full' or 'fixed'"
            )

    def sampler(self, m: int) -> samplers.Sampler:
        """The sampler of batches of m samples."""
        return (
            samplers.subspace(m)
            if self.sampling == "subspace"
            else samplers.full(m, self.sampling == "fixed")
        )

    @property
    def start_phases(self) -> tuple[Phase, ...]:
        """The method of moments."""
        if self.start == "random":
            return ()
        itemsize = jnp.dtype(self.task.dtype).itemsize
        fixed = self.sampling == "fixed"
        return (
            method_of_moments(
                self.task.dim,
                self.task.rank,
                self.samples_per_round,
                itemsize,
                fixed,
                self.charge_start,
            ),
        )

    @property
    def charges(self) -> Charges:
        """The upload is B_i, with any sampler."""
        return Charges(
            sends=jax.ShapeDtypeStruct((self.task.dim, self.task.rank), self.task.dtype)
        )

    def init(self, key: Key, data: LinearTask) -> LinearFedRepServerState:
        """A random subspace, which the method of moments replaces."""
        return LinearFedRepServerState(
            self.random_subspace(key, data), data.representation
        )

    def init_client(
        self, key: Key, server: LinearFedRepServerState, client: LinearClient
    ) -> Any:
        """A head of zero, if clients keep their heads."""
        return (
            ()
            if self.head == "exact"
            else LinearFedRepClientState(jnp.zeros_like(client.head))
        )

    def broadcast(
        self, server: LinearFedRepServerState, context: RoundContext
    ) -> LinearFedRepBroadcast:
        """The representation."""
        position = self.sampler(self.samples_per_round).locate(*server)
        return LinearFedRepBroadcast(server.representation, Uncharged(position))

    @exact_matmul
    def client(
        self,
        key: Key,
        broadcast: Any,
        state: Any,
        client: LinearClient,
        context: RoundContext,
    ) -> ClientOutput:
        """Fit the head, and take a gradient step on the representation."""
        sampler, m = self.sampler(self.samples_per_round), self.samples_per_round
        batch = sampler.draw(
            key, broadcast.representation, broadcast.position.value, client
        )
        if self.head == "exact":
            w = least_squares(
                batch.features, batch.y
            )  # w_i <- argmin_w f_i(w o B)                (line 10)
        else:
            rate = self.step_size if self.head_step_size is None else self.head_step_size
            step = lambda _, w: (
                w + rate / m * ((batch.y - batch.features @ w) @ batch.features)
            )
            w = fori_loop(
                jnp.int32(self.head) * context.work,
                step,
                state.head,
                int(self.head) * most_work(),
            )
        # B_i <- B - eta grad_B f_i(w_i o B); the server adds B and eta, which all clients share     (line 11)
        new = None if self.head == "exact" else LinearFedRepClientState(w)
        return ClientOutput(sampler.descent(key, batch, w), new)

    def server(
        self, key: Key, server: LinearFedRepServerState, mean: Any, context: RoundContext
    ) -> Any:
        """The mean representation, orthonormalised."""
        descent = self.sampler(self.samples_per_round).mean_descent(
            key, *server, mean, context.cohort_size
        )
        # B <- QR of (1/n) sum_i B_i                                                         (lines 13 and 14)
        return server._replace(
            representation=orthonormalize(
                server.representation + self.step_size * descent
            )
        )

    def metrics(
        self, server: LinearFedRepServerState, data: LinearTask
    ) -> dict[str, Array]:
        """The distance of the subspaces."""
        return {
            "distance": principal_angle_distance(
                server.representation, data.representation
            )
        }

    @property
    def evaluations(self) -> dict[str, Personalize]:
        """Evaluations, with `own_head` only if clients keep their heads."""
        return {
            n: found
            for n, found in super().evaluations.items()
            if n != "own_head" or self.head != "exact"
        }

    @evaluation
    def fit_head(
        self, key: Key, server: LinearFedRepServerState, state: Any, client: LinearClient
    ):
        """A head fitted to samples of the client under the current representation."""
        sampler = self.sampler(self.evaluation_samples or self.samples_per_round)
        batch = sampler.draw(key, server.representation, sampler.locate(*server), client)
        w = least_squares(batch.features, batch.y)
        return Partial(outputs, LinearModel(server.representation, w))

    @evaluation
    def own_head(
        self,
        key: Key,
        server: LinearFedRepServerState,
        state: LinearFedRepClientState,
        client: LinearClient,
    ):
        """The client's own head, as it last left it (where heads are trained by gradient steps)."""
        return Partial(outputs, LinearModel(server.representation, state.head))
