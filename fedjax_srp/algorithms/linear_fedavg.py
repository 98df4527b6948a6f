"""FedAvg on linear tasks, population gradients: one global model B w."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_integer, check_step_size
from fedjax_srp.base import Array, ClientOutput, FederatedAlgorithm, Key, Phase, RoundContext
from fedjax_srp.data.linear import LinearTask
from fedjax_srp.linear import LinearClient, draw_batch, orthonormalize, principal_angle_distance
from fedjax_srp.linear.subspace import exact_matmul
from fedjax_srp.loops import batch_max
from fedjax_srp.record import recorded


class LinearFedAvgModel(NamedTuple):
    """The global model x -> x^T B w: server state, broadcast and message in one."""

    representation: Array  # (d, k) B
    head: Array  # (k,) w


@recorded
def linear_fedavg(
    task: LinearTask,
    step_size: float | Array,
    local_steps: int = 2,
    fine_tune_samples: int = 20,
    fine_tune_steps: int = 200,
    fine_tune_step_size: float | Array = 0.01,
) -> FederatedAlgorithm:
    """FedAvg on a linear task ("FedAvg with fine tuning: local updates lead to representation learning", section 5.1).

    Every part of the model is shared. Clients descend their population loss 1/2 ||B w - B* w_i*||^2 in B and w together
    (equation 7 drops the 1/2). `local_steps=1` is distributed gradient descent, D-GD, which learns no representation.
    Metrics: `distance`, dist(B, B*), and `gradient_norm`, Frobenius norm of the global loss's gradient (figure 3,
    left).

    Evaluations, squared error, smaller is better: `fine_tune` (figure 3, right), B and w trained by full-batch gradient
    descent on fresh samples of the client; `global`, the model as it is.

    Args:
        task: gives the shapes only; the values come with `simulate`. The paper has heads="gaussian".
        step_size: alpha; B starts as an orthonormal matrix / sqrt(alpha), w at 0. The paper has 0.4.
        local_steps: tau, per unit of work. The paper has 2.
        fine_tune_samples: n, samples of a client in `fine_tune`.
        fine_tune_steps: tau', gradient steps of `fine_tune`.
        fine_tune_step_size: of those steps.

    Returns:
        A `FederatedAlgorithm` on a `LinearTask` of these shapes.

    Raises:
        ValueError: a number of steps or samples below 1.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> task = srp.data.linear_task(jax.random.key(0), num_clients=40, dim=20, rank=2, heads="gaussian")
        >>> algorithm = srp.algorithms.linear_fedavg(task, step_size=0.4, local_steps=2)
        >>> history = srp.simulate(algorithm, task, num_rounds=150, key=jax.random.key(1), progress=False)
        >>> bool(history.metrics["distance"][-1] < 1e-3)
        True
    """
    dim, rank = task.dim, task.rank
    counts = {"local_steps": local_steps, "fine_tune_samples": fine_tune_samples, "fine_tune_steps": fine_tune_steps}
    for argument, value in counts.items():
        check_integer(argument, value, 1)
    check_step_size("step_size", step_size)
    check_step_size("fine_tune_step_size", fine_tune_step_size)

    def init(key: Key, data: LinearTask) -> LinearFedAvgModel:
        if (shape := data.representation.shape) != (dim, rank):
            raise ValueError(f"the data has (dim, rank) = {shape}, linear_fedavg was made for {(dim, rank)}")
        b = orthonormalize(jax.random.normal(key, (dim, rank))) / jnp.sqrt(step_size)
        return LinearFedAvgModel(b, jnp.zeros_like(b[0]))

    @exact_matmul
    def client(key: Key, model: LinearFedAvgModel, state: tuple, client: LinearClient, context: RoundContext):
        theta = client.representation @ client.head

        def step(t: Array, model: LinearFedAvgModel) -> LinearFedAvgModel:
            b, w = model
            error = b @ w - theta
            # (B, w) <- (B, w) - alpha grad f_i(B, w), both from the same point
            new = LinearFedAvgModel(b - step_size * error[:, None] * w[None, :], w - step_size * (error @ b))
            return jax.tree.map(lambda n, o: jnp.where(t < steps, n, o), new, model)

        steps = local_steps * context.work
        return ClientOutput(jax.lax.fori_loop(jnp.int32(0), batch_max(steps), step, model))

    @exact_matmul
    def metrics(model: LinearFedAvgModel, data: LinearTask) -> dict[str, Array]:
        b, w = model
        error = b @ w - data.representation @ jnp.mean(data.heads, axis=0)
        squared = jnp.sum((error @ b) ** 2) + jnp.sum(error**2) * jnp.sum(w**2)
        return {"distance": principal_angle_distance(b, data.representation), "gradient_norm": jnp.sqrt(squared)}

    @exact_matmul
    def fine_tune(key: Key, model: LinearFedAvgModel, state: tuple, client: LinearClient):
        """Both factors after full-batch gradient steps on samples of the client."""
        x, y = draw_batch(key, client, fine_tune_samples)

        def step(_: Array, model: LinearFedAvgModel) -> LinearFedAvgModel:
            b, w = model
            error = (x @ (b @ w) - y) @ x / fine_tune_samples  # gradient of (1/2n) sum_j (<B w, x_j> - y_j)^2 in B w
            rate = fine_tune_step_size
            return LinearFedAvgModel(b - rate * error[:, None] * w[None, :], w - rate * (error @ b))

        b, w = jax.lax.fori_loop(0, fine_tune_steps, step, model)
        return lambda x: x @ (b @ w)

    def as_it_is(key: Key, model: LinearFedAvgModel, state: tuple, client: LinearClient):
        """Both factors as they are."""
        return lambda x: x @ (model[0] @ model[1])

    return FederatedAlgorithm(
        name="linear_fedavg",
        init=init,
        init_client=lambda key, server, client: (),
        # (B, w) <- mean of (B_i, w_i)
        round=Phase(lambda server, context: server, client, lambda key, server, mean, context: mean),
        evaluations={
            "fine_tune": fine_tune,
            "global": as_it_is,
        },
        metrics=metrics,
    )
