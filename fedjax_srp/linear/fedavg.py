"""FedAvg on linear tasks with population gradients: one global model B w."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_srp.base import Array, ClientOutput, Key, RoundContext, evaluation
from fedjax_srp.linear import LinearClient, draw_batch, principal_angle_distance
from fedjax_srp.linear.algorithm import LinearAlgorithm, outputs
from fedjax_srp.linear.subspace import exact_matmul
from fedjax_srp.linear.task import LinearTask
from fedjax_srp.parts.part import Count, StepSize, part
from fedjax_srp.xla.loops import batch_max, fori_loop, most_work


class LinearFedAvgModel(NamedTuple):
    """The global model x -> x^T B w: server state, broadcast and message in one."""

    representation: Array  # (d, k) B
    head: Array  # (k,) w


@part
class LinearFedAvg(LinearAlgorithm):
    """FedAvg on a linear task ("FedAvg with fine tuning: local updates lead to representation learning", section 5.1).

    Every part of the model is shared. Clients descend their population loss 1/2 ||B w - B* w_i*||^2 in B and w together
    (equation 7 drops the 1/2). `local_steps=1` is distributed gradient descent, D-GD, which learns no representation.
    Metrics: `distance`, dist(B, B*), and `gradient_norm`, Frobenius norm of the global loss's gradient (figure 3,
    left).

    Evaluations, squared error, smaller is better: `fine_tune` (figure 3, right), B and w trained by full-batch gradient
    descent on fresh samples of the client; `global`, the model as it is.

    Args:
        task: only its shapes are used; `simulate` brings the values. The paper has heads="gaussian".
        step_size: alpha; B starts as an orthonormal matrix / sqrt(alpha), w at 0. The paper has 0.4.
        local_steps: tau, per unit of work. The paper has 2.
        fine_tune_samples: n, samples of a client in `fine_tune`.
        fine_tune_steps: tau', gradient steps of `fine_tune`.
        fine_tune_step_size: of those steps.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> task = srp.data.linear_task(jax.random.key(0), num_clients=40, dim=20, rank=2, heads="gaussian")
        >>> algorithm = srp.algorithms.LinearFedAvg(task, step_size=0.4, local_steps=2)
        >>> history = srp.simulate(algorithm, task, num_rounds=150, key=jax.random.key(1), progress=False)
        >>> bool(history.metrics["distance"][-1] < 1e-3)
        True
    """

    name: ClassVar[str] = "linear_fedavg"

    local_steps: Count = 2
    fine_tune_samples: Count = 20
    fine_tune_steps: Count = 200
    fine_tune_step_size: StepSize = 0.01

    def init(self, key: Key, data: LinearTask) -> LinearFedAvgModel:
        """A random subspace, and a head of zero."""
        b = self.random_subspace(key, data) / jnp.sqrt(self.step_size)
        return LinearFedAvgModel(b, jnp.zeros_like(b[0]))

    @exact_matmul
    def client(
        self,
        key: Key,
        model: LinearFedAvgModel,
        state: tuple,
        client: LinearClient,
        context: RoundContext,
    ):
        """Gradient steps on the population loss."""
        theta = client.representation @ client.head

        def step(t: Array, model: LinearFedAvgModel) -> LinearFedAvgModel:
            b, w = model
            error, rate = b @ w - theta, self.step_size
            # (B, w) <- (B, w) - alpha grad f_i(B, w), both from the same point
            new = LinearFedAvgModel(
                b - rate * error[:, None] * w[None, :], w - rate * (error @ b)
            )
            return jax.tree.map(lambda n, o: jnp.where(t < steps, n, o), new, model)

        steps = self.local_steps * context.work
        return ClientOutput(
            fori_loop(batch_max(steps), step, model, self.local_steps * most_work())
        )

    def server(
        self,
        key: Key,
        server: LinearFedAvgModel,
        mean: LinearFedAvgModel,
        context: RoundContext,
    ):
        """The mean."""
        # (B, w) <- mean of (B_i, w_i)
        return mean

    @exact_matmul
    def metrics(self, model: LinearFedAvgModel, data: LinearTask) -> dict[str, Array]:
        """The distance of the subspaces, and the norm of the global gradient."""
        b, w = model
        error = b @ w - data.representation @ jnp.mean(data.heads, axis=0)
        squared = jnp.sum((error @ b) ** 2) + jnp.sum(error**2) * jnp.sum(w**2)
        return {
            "distance": principal_angle_distance(b, data.representation),
            "gradient_norm": jnp.sqrt(squared),
        }

    @evaluation
    @exact_matmul
    def fine_tune(
        self, key: Key, model: LinearFedAvgModel, state: tuple, client: LinearClient
    ):
        """Both factors after full-batch gradient steps on samples of the client."""
        x, y = draw_batch(key, client, self.fine_tune_samples)

        def step(_: Array, model: LinearFedAvgModel) -> LinearFedAvgModel:
            b, w = model
            # gradient of (1/2n) sum_j (<B w, x_j> - y_j)^2 in B w
            error = (x @ (b @ w) - y) @ x / self.fine_tune_samples
            rate = self.fine_tune_step_size
            return LinearFedAvgModel(
                b - rate * error[:, None] * w[None, :], w - rate * (error @ b)
            )

        tuned = jax.lax.fori_loop(0, self.fine_tune_steps, step, model)
        return Partial(outputs, tuned)

    @evaluation("global")
    def global_model(
        self, key: Key, model: LinearFedAvgModel, state: tuple, client: LinearClient
    ):
        """Both factors as they are."""
        return Partial(outputs, model)
