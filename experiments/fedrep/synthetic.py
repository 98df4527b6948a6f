"""Synthetic experiments of the FedRep paper: clients, initial representation and baselines."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

import fedjax_srp as srp
from experiments import scripts
from fedjax_srp.linear import draw_batch, least_squares

NOISE = 1e-3  # of labels whose features are divided by sqrt(m)
DESCENT_STEPS, DESCENT_STEP = 10, 0.5  # number and size of steps of the start


def make_tasks(
    key,
    num_clients: int,
    num_new: int,
    dim: int,
    rank: int,
    samples: int,
    head_norm: float = 1.0,
):
    """Draw the tasks of training clients and of new clients with the same B*.

    The authors divide features by sqrt(m) but not the noise: with standard normal features its size is sqrt(m) NOISE.
    """
    task = srp.data.linear_task(
        key, num_clients + num_new, dim, rank, noise_std=NOISE * math.sqrt(samples)
    )
    heads = task.heads * (head_norm / math.sqrt(rank))
    new_key = srp.named_key(
        task.key, "new clients"
    )  # else client i would have the samples of training client i
    return (
        dataclasses.replace(task, heads=heads[:num_clients]),
        dataclasses.replace(task, heads=heads[num_clients:], key=new_key),
    )


def make_trials(
    seed: int, trials: int, num_clients: int, num_new: int, *sizes: float
) -> list[tuple]:
    """Draw the tasks of every trial."""
    keys = scripts.trial_keys(seed, trials)
    return [make_tasks(key, num_clients, num_new, *sizes) for key in keys]


def fixed_samples(task, samples: int):
    """Return the fixed samples of all clients: X (n, m, d) and y (n, m)."""

    def batch(i):
        client = task.train_client(i)
        return draw_batch(client.key, client, samples)

    return jax.vmap(batch)(jnp.arange(task.num_clients))


def local_only(task, samples: int):
    """Return the (n,) errors of clients that fit their own samples alone, by the solution of smallest norm."""
    theta = jax.vmap(lambda x, y: jnp.linalg.lstsq(x, y)[0])(
        *fixed_samples(task, samples)
    )
    return jnp.sum((theta - task.heads @ task.representation.T) ** 2, axis=1)


@srp.part
class FedSGD(srp.algorithms.LinearFedAvg):
    """Gradient descent on all fixed samples of one global model x -> x^T B w, evaluated with a refitted head.

    Args:
        task: as for `LinearFedAvg`.
        step_size: of the single step of a round.
        samples: m, samples of a client.
        evaluation_samples: samples that `fit_head` takes; default m.
    """

    _: dataclasses.KW_ONLY
    samples: Annotated[int, srp.AtLeast(1)]
    evaluation_samples: Annotated[int, srp.AtLeast(1)] | None = None

    def client(self, key, model, state, client, context):
        """Take one step on the client's samples."""
        b, w = model
        x, y = draw_batch(client.key, client, self.samples)
        gradient = (
            (x @ (b @ w) - y) @ x / self.samples
        )  # of (1/2m) ||X B w - y||^2 in B w
        step = gradient[:, None] * w[None, :], gradient @ b
        return srp.ClientOutput(
            jax.tree.map(lambda p, g: p - self.step_size * g, model, type(model)(*step))
        )

    @srp.evaluation
    def fit_head(self, key, model, state, client):
        """Fit a head to samples of the client."""
        x, y = draw_batch(client.key, client, self.evaluation_samples or self.samples)
        w = least_squares(x @ model.representation, y)
        return lambda x: x @ (model.representation @ w)


@srp.part
class FedRepFromDescent(srp.algorithms.LinearFedRep):
    """FedRep whose B starts at the right singular vectors found by projected gradient descent.

    On the unfactorised problem each row theta_i of an (n, d) matrix descends the loss of its client, then the matrix is
    cut to its k leading singular values (Tu et al. 2016, Algorithm 1). This takes all clients' fixed samples, and no
    simulated time. `start` must be "random"; these vectors replace it.
    """

    name: ClassVar[str] = "linear_fedrep"

    def init(self, key, task):
        """Start at the right singular vectors."""
        x, y = fixed_samples(task, self.samples_per_round)

        def step(_, theta):
            residual = jnp.einsum("nmd,nd->nm", x, theta) - y
            theta = (
                theta
                - DESCENT_STEP
                * jnp.einsum("nmd,nm->nd", x, residual)
                / self.samples_per_round
            )
            u, s, vt = jnp.linalg.svd(theta, full_matrices=False)
            return (u[:, : task.rank] * s[None, : task.rank]) @ vt[: task.rank]

        theta = jax.lax.fori_loop(
            0, DESCENT_STEPS, step, jnp.zeros((task.num_clients, task.dim))
        )
        right = jnp.linalg.svd(theta, full_matrices=False)[2][: task.rank]
        return super().init(key, task)._replace(representation=right.T)


def fedrep_from(start: str, task, **options):
    """Return FedRep on fixed samples, from the start by descent or a random one."""
    make = {"descent": FedRepFromDescent, "random": srp.algorithms.LinearFedRep}
    return make[start](task, sampling="fixed", start="random", **options)
