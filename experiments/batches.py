"""Linear FedRep with fresh batches of several sizes in one program, from a start at a chosen distance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from fedjax_srp.linear import orthonormalize, samplers

START = 0.5  # distance of the first representation, in all principal angles


@srp.part
class LinearFedRepByBatch(srp.algorithms.LinearFedRep):
    """FedRep whose clients use the first `batch` of the samples that they draw, and whose B starts near the truth.

    The number of samples is then no longer static, so that runs with different ones share a program. `start` must be
    "random": it gives the directions in which the first B leaves the truth.
    """

    name: ClassVar[str] = "linear_fedrep"
    _: dataclasses.KW_ONLY
    batch: Annotated[float, srp.AtLeast(1)]

    def init(self, key, data):
        """Start at distance `START` in every direction of the representation."""
        server = super().init(key, data)
        b, truth = server.representation, server.truth
        outside = orthonormalize(b - truth @ (truth.T @ b))
        return server._replace(
            representation=math.sqrt(1 - START**2) * truth + START * outside
        )

    def sampler(self, m: int) -> samplers.Sampler:
        """Draw m samples in blocks, too small to be replaced by a triangular root, and blank those not used."""
        rows = 2 * self.task.rank + 1
        block, blocks = samplers.subspace(rows), -(-m // rows)

        def draw(key, *where: Any):
            drawn = jax.vmap(lambda key: block.draw(key, *where))(
                jax.random.split(key, blocks)
            )
            used = (jnp.arange(blocks * rows, dtype=drawn.y.dtype) < self.batch).astype(
                drawn.y.dtype
            )
            kept = {
                name: getattr(drawn, name).reshape(-1) * used for name in ("y", "noise")
            }
            kept["features"] = drawn.features.reshape(-1, self.task.rank) * used[:, None]
            return jax.tree.map(lambda leaf: leaf[0], drawn)._replace(**kept)

        def descent(key, *batch: Any):
            message, scale = (
                block.descent(key, *batch),
                rows / self.batch,
            )  # the mean over the batch, not over a block
            return type(message)(
                message.inside * scale, message.outside * scale, message.spread * scale**2
            )

        return block._replace(draw=draw, descent=descent)


def head_values(task: Any) -> tuple[float, float]:
    """Return sigma_min and sigma_max of the heads of all clients, divided by sqrt(n)."""
    values = np.linalg.svd(np.asarray(task.heads), compute_uv=False) / math.sqrt(
        task.num_clients
    )
    return float(values[-1]), float(values[0])


def distances(
    tasks: Sequence[Any], batches: Sequence[int], step: float, rounds: int
) -> np.ndarray:
    """Return the distances after each round, (tasks, batches, rounds), of steps of size step / sigma_max^2."""
    found = []
    for trial, task in enumerate(tasks):
        eta = step / head_values(task)[1] ** 2
        algorithm = LinearFedRepByBatch(
            task,
            step_size=eta,
            samples_per_round=max(batches),
            start="random",
            batch=max(batches),
        )
        runs = srp.simulate_seeds(
            algorithm,
            task,
            keys=jax.random.split(jax.random.key(trial), len(batches)),
            values={"batch": np.asarray(batches)},
            num_rounds=rounds,
            eval_every=rounds,
            evaluations=(),
            chunk_size=min(task.num_clients, 1024),
            progress=False,
            devices=1,
        )
        found.append([run.metrics["distance"] for run in runs])
    return np.array(found)


def smallest(counts: Sequence[int], holds: Sequence[bool]) -> int | None:
    """Return the first count from which on a condition holds, None if it fails at the last."""
    failing = [place for place, good in enumerate(holds) if not good]
    first = failing[-1] + 1 if failing else 0
    return counts[first] if first < len(counts) else None
