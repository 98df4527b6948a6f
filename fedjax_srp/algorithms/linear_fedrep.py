"""FedRep on linear tasks: SRPFL's Algorithm 2 without its participation."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_choice, check_integer, check_step_size
from fedjax_srp.base import Array, ClientOutput, FederatedAlgorithm, Key, Phase, RoundContext, Uncharged
from fedjax_srp.data.linear import LinearTask
from fedjax_srp.linear import (
    LinearClient,
    least_squares,
    method_of_moments,
    orthonormalize,
    principal_angle_distance,
    samplers,
)
from fedjax_srp.linear.subspace import exact_matmul
from fedjax_srp.record import recorded

SAMPLINGS = ("subspace", "full", "fixed")
INITS = ("moments", "random")


class LinearFedRepServerState(NamedTuple):
    """The representation, and the truth that samples are drawn from."""

    representation: Array  # (d, k) B, orthonormal columns
    truth: Array  # (d, k) B*, for the sampler alone


class LinearFedRepClientState(NamedTuple):
    """The personal head, kept from round to round where it is trained by gradient steps."""

    head: Array  # (k,) w_i


class LinearFedRepBroadcast(NamedTuple):
    """What is downloaded, and what only the sampler knows."""

    representation: Array  # (d, k) B
    position: Uncharged  # of B relative to B*


@recorded
def linear_fedrep(
    task: LinearTask,
    step_size: float | Array,
    samples_per_round: int,
    head: str | int = "exact",
    sampling: str = "subspace",
    init: str = "moments",
    head_step_size: float | Array | None = None,
    evaluation_samples: int | None = None,
) -> FederatedAlgorithm:
    """FedRep on a linear task (SRPFL, Algorithm 2, lines 8 to 14): a shared subspace B, personal heads w_i.

    A round: a participant draws m samples, fits its head, takes one gradient step on the representation; the server
    averages the representations and orthonormalises. Metric `distance`: dist(B, B*) after every round. With `head=1`
    and `head=10` it is GD-GD and 10GD-GD of the FedRep paper (figure 3).

    `sampling`: "full" draws the samples, (m, d) per client and round. "subspace" draws a round's mean exactly in law
    from about k^2 numbers per client and one (d, k) matrix (`srp.linear.samplers`), so that its cost hardly depends on
    d or m. "fixed" keeps one batch per client for the whole run, the same in every run on the task.

    Evaluation `fit_head`, squared error, smaller is better: the head fitted to `evaluation_samples` of the client under
    the current representation, as a new client with this head would. Where heads are trained by gradient steps, also
    `own_head`, as the client last left it.

    A head that the batch does not determine (m < k, duplicate samples) is the least-squares solution of smallest norm.

    Args:
        task: gives the shapes only; the values come with `simulate`.
        step_size: eta; the theory has eta <= 1 / (8 sigma_max^2), see `srp.theory.max_step_size`.
        samples_per_round: m.
        head: "exact" least squares, or how many gradient steps per unit of work, from the client's last head.
        sampling: "subspace", "full" or "fixed".
        init: "moments", the method of moments over a batch of ALL clients (lines 1 to 5; (m, d) samples and a d x d
            matrix per client, whatever `sampling` says), or "random", a uniformly distributed subspace.
        head_step_size: of the gradient steps of the head; default `step_size`.
        evaluation_samples: of `fit_head`; default m. "fixed" sampling draws them from the client's own key, the same
            whenever asked; with the default they are its batch.

    Returns:
        A `FederatedAlgorithm` on a `LinearTask` of these shapes.

    Raises:
        ValueError: an argument out of range; moments of a dimension whose d x d matrix is too large.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> task = srp.data.linear_task(jax.random.key(0), num_clients=64, dim=20, rank=2, noise_std=0.1)
        >>> algorithm = srp.algorithms.linear_fedrep(task, step_size=0.1, samples_per_round=10)
        >>> history = srp.simulate(algorithm, task, num_rounds=50, key=jax.random.key(1), progress=False)
        >>> bool(history.metrics["distance"][-1] < 0.05)
        True
    """
    dim, rank = task.dim, task.rank
    check_integer("samples_per_round", samples_per_round, 1)
    judged = samples_per_round if evaluation_samples is None else evaluation_samples
    check_integer("evaluation_samples", judged, 1)
    fixed, exact = sampling == "fixed", isinstance(head, str) and head == "exact"
    check_integer("head", 1 if exact else head, 1, otherwise="'exact'")
    check_choice("sampling", sampling, SAMPLINGS)
    check_choice("init", init, INITS)
    sampler = samplers.subspace if sampling == "subspace" else lambda m: samplers.full(m, fixed)
    batches, judging = sampler(samples_per_round), sampler(judged)
    itemsize = task.representation.dtype.itemsize
    prepare = None if init == "random" else method_of_moments(dim, rank, samples_per_round, itemsize, fixed)
    check_step_size("step_size", step_size)
    head_rate = step_size if head_step_size is None else check_step_size("head_step_size", head_step_size)

    def start(key: Key, data: LinearTask) -> LinearFedRepServerState:
        if (shape := data.representation.shape) != (dim, rank):
            raise ValueError(f"the data has (dim, rank) = {shape}, linear_fedrep was made for {(dim, rank)}")
        return LinearFedRepServerState(orthonormalize(jax.random.normal(key, (dim, rank))), data.representation)

    def broadcast(server: LinearFedRepServerState, context: RoundContext) -> LinearFedRepBroadcast:
        return LinearFedRepBroadcast(server.representation, Uncharged(batches.locate(*server)))

    @exact_matmul
    def client(key: Key, broadcast: LinearFedRepBroadcast, state: Any, client: LinearClient, context: RoundContext):
        batch = batches.draw(key, broadcast.representation, broadcast.position.value, client)
        if exact:
            w = least_squares(batch.features, batch.y)  # w_i <- argmin_w f_i(w o B)                (line 10)
        else:
            step = lambda _, w: w + head_rate / samples_per_round * ((batch.y - batch.features @ w) @ batch.features)  # noqa: E731
            w = jax.lax.fori_loop(0, jnp.int32(head) * context.work, step, state.head)
        # B_i <- B - eta grad_B f_i(w_i o B); the server adds B and eta, which all clients share     (line 11)
        return ClientOutput(batches.descent(key, batch, w), None if exact else LinearFedRepClientState(w))

    def server(key: Key, state: LinearFedRepServerState, mean: Any, context: RoundContext) -> LinearFedRepServerState:
        b = state.representation
        # (1/n) sum_i B_i                                                                            (line 13)
        b_mean = b + step_size * batches.mean_descent(key, *state, mean, context.cohort_size)
        return state._replace(representation=orthonormalize(b_mean))  # B <- QR                       (line 14)

    def fit_head(key: Key, server: LinearFedRepServerState, state: Any, client: LinearClient):
        """A head fitted to samples of the client under the current representation."""
        batch = judging.draw(key, server.representation, judging.locate(*server), client)
        w = least_squares(batch.features, batch.y)
        return lambda x: x @ (server.representation @ w)

    def own_head(key: Key, server: LinearFedRepServerState, state: LinearFedRepClientState, client: LinearClient):
        """The client's own head, as it last left it (where heads are trained by gradient steps)."""
        return lambda x: x @ (server.representation @ state.head)

    return FederatedAlgorithm(
        name="linear_fedrep",
        init=start,
        init_client=lambda key, server, client: () if exact else LinearFedRepClientState(jnp.zeros_like(client.head)),
        round=Phase(broadcast, client, server),
        evaluations={"fit_head": fit_head} | ({} if exact else {"own_head": own_head}),
        prepare=prepare,
        sends=jax.ShapeDtypeStruct((dim, rank), task.representation.dtype),  # B_i, whatever the sampler sums
        metrics=lambda server, data: {"distance": principal_angle_distance(server.representation, data.representation)},
    )
