"""Base of algorithms on linear tasks: the shapes of a task, and the step size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, FederatedAlgorithm, Key
from fedjax_srp.linear import orthonormalize
from fedjax_srp.linear.task import LinearTask
from fedjax_srp.parts.checks import REMEDIES, short
from fedjax_srp.parts.part import StepSize, part


@part
class TaskShape:
    """Shapes of a linear task, static in programs."""

    dim: int  # d, inputs of a sample
    rank: int  # k, dimension of the shared subspace
    dtype: str


@part
class LinearAlgorithm(FederatedAlgorithm):
    """An algorithm on a linear task.

    Args:
        task: only its shapes are kept, as a `TaskShape`; `simulate` brings the values.
        step_size: of gradient steps.

    Raises:
        ValueError: a field is out of range.
    """

    task: Any
    step_size: StepSize

    def __post_init__(self) -> None:
        if isinstance(self.task, LinearTask):
            shape = TaskShape(
                self.task.dim,
                self.task.rank,
                jnp.dtype(self.task.representation.dtype).name,
            )
            object.__setattr__(self, "task", shape)
        if not isinstance(self.task, TaskShape):
            raise ValueError(
                f"task={short(self.task)} must be a LinearTask; {REMEDIES['LinearTask']}"
            )

    def random_subspace(self, key: Key, data: LinearTask) -> Array:
        """An orthonormal matrix (d, k), uniformly distributed; data of other shapes raise a `ValueError`."""
        expected = (self.task.dim, self.task.rank)
        if (shape := data.representation.shape) != expected:
            raise ValueError(
                f"the data has (dim, rank) = {shape}, but {self.name} was made for {expected}"
            )
        return orthonormalize(jax.random.normal(key, expected))
