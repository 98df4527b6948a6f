"""`LinearTask`: the papers' linear regression, whose clients share a subspace and differ in their heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Key, Predict, named_key
from fedjax_srp.linear import Design, LinearClient, orthonormalize
from fedjax_srp.parts.checks import check_numbers
from fedjax_srp.parts.description import records_arguments
from fedjax_srp.parts.part import Count
from fedjax_srp.parts.pytrees import register, take


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearTask:
    """Regression y = w_i*^T B*^T x + z with z ~ N(0, sigma^2) and inputs of variance 1, a pytree to pass to `simulate`.

    It holds the true parameters; algorithms draw samples. A client's score is its population error, ||theta - B*
    w_i*||^2 for a linear predictor x -> x theta, SMALLER IS BETTER.

    Build it with `linear_task`, which checks its arguments, or from your own arrays.

    Attributes:
        representation: (d, k) B*, orthonormal columns.
        heads: (num_clients, k) w_i*, one row per client.
        noise_std: () sigma.
        key: of the clients' fixed samples.
        name: of the task in results.
        options: arguments of `linear_task`, for the record of a run; None if unknown.
        design: distribution of x, as in `linear_task`.
    """

    remedy: ClassVar[str] = "give srp.data.linear_task(key, num_clients, dim, rank)"

    representation: Array
    heads: Array
    noise_std: Array
    key: Key
    name: str = "linear"
    options: Mapping[str, Any] | None = None
    design: Design = "gaussian"

    score_name: ClassVar[str] = "squared error"
    smaller_is_better: ClassVar[bool] = True

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.heads.shape[0]

    @property
    def dim(self) -> int:
        """Number d of inputs of a sample."""
        return self.representation.shape[0]

    @property
    def rank(self) -> int:
        """Dimension k of the shared subspace."""
        return self.representation.shape[1]

    def train_client(self, client_id: Array) -> LinearClient:
        """Return the distribution of a client's samples; `client_id` () int32 may be traced."""
        key = jax.random.fold_in(self.key, client_id)
        return LinearClient(
            self.representation,
            take(self.heads, client_id),
            self.noise_std,
            key,
            self.design,
        )

    def test_client(self, client_id: Array) -> LinearClient:
        """Return the same distribution: a score compares with the client's true parameters."""
        return self.train_client(client_id)

    def score(self, predict: Predict, test: LinearClient) -> tuple[Array, Array]:
        """Return the population error ||theta - theta*||^2, and 1; `predict` (batch, d) -> (batch,) is linear."""
        with jax.default_matmul_precision("highest"):
            theta = jax.grad(lambda x: predict(x[None, :])[0])(
                jnp.zeros_like(test.representation[:, 0])
            )
            error = jnp.sum((theta - test.representation @ test.head) ** 2)
        return error, jnp.ones_like(error)

    def __repr__(self) -> str:
        if not all(
            hasattr(leaf, "shape") for leaf in jax.tree.leaves(self)
        ):  # a tree of axes or shardings
            return f"LinearTask({self.name!r}, {jax.tree.leaves(self)})"
        return f"LinearTask({self.name!r}, {self.num_clients} clients, dim {self.dim}, rank {self.rank})"


register(LinearTask, "name", "design")


@records_arguments
def linear_task(
    key: Key,
    num_clients: Count,
    dim: Count,
    rank: Count,
    noise_std: float | Array = 0.0,
    heads: Literal["sphere", "gaussian"] = "sphere",
    name: str = "linear",
    design: Design = "gaussian",
) -> LinearTask:
    """Draw a linear task: B* uniform among orthonormal (d, k) matrices, heads independent of it (SRPFL, section 4).

    Args:
        key: of the task; tasks with the same key share B* and, for any num_clients, the head of each client id.
        num_clients: M.
        dim: d, larger than the rank.
        rank: k.
        noise_std: sigma, in units of y.
        heads: "sphere", ||w_i*|| = sqrt(k) as in SRPFL, or "gaussian", w_i* ~ N(0, I_k) as in the paper on FedAvg.
        name: of the task in results.
        design: distribution of the entries of x, independent, with mean 0 and variance 1: "gaussian", or sub-Gaussian
            as SRPFL's Assumption 4.2 allows, "rademacher" (-1 or 1) or "uniform" (on [-sqrt 3, sqrt 3]). The method of
            moments and sampling in a subspace are derived for Gaussian x: the first is then biased, and fails where
            columns of B* lie along an axis; the second is refused.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> srp.data.linear_task(jax.random.key(0), num_clients=100, dim=20, rank=2, noise_std=0.1)
        LinearTask('linear', 100 clients, dim 20, rank 2)
    """
    if rank >= dim:
        raise ValueError(
            f"linear_task: rank={rank} must be below dim={dim}, or there is no subspace to learn"
        )
    check_numbers(
        "linear_task: noise_std", noise_std, "give 0 for none, or e.g. 0.1", max_ndim=0
    )
    representation = orthonormalize(
        jax.random.normal(named_key(key, "representation"), (dim, rank))
    )
    key_heads = named_key(key, "heads")
    ids = jnp.arange(num_clients, dtype=jnp.int32)
    w = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key_heads, i), (rank,)))(
        ids
    )
    if heads == "sphere":
        w = w * jnp.sqrt(rank / jnp.sum(w**2, axis=1, keepdims=True))
    return LinearTask(
        representation,
        w,
        jnp.asarray(noise_std, representation.dtype),
        named_key(key, "samples"),
        name,
        design=design,
    )
