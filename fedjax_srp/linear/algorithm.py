"""Base of algorithms on linear tasks: the shapes of a task, and the step size."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, FederatedAlgorithm, Key
from fedjax_srp.linear import Design, orthonormalize
from fedjax_srp.linear.task import LinearTask
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.part import StepSize, field, part


@part
class TaskShape:
    """Shapes of a linear task, static in programs."""

    dim: int  # d, inputs of a sample
    rank: int  # k, dimension of the shared subspace
    dtype: str
    design: Design = "gaussian"


class LinearModel(NamedTuple):
    """The model x -> x^T B w."""

    representation: Array  # (d, k) B
    head: Array  # (k,) w


def outputs(model: Any, x: Array) -> Array:
    """The outputs of a model with `representation` and `head`, (batch, d) -> (batch,)."""
    return x @ (model.representation @ model.head)


def _as_shape(task: Any) -> TaskShape:
    """The shapes of a task."""
    if isinstance(task, LinearTask):
        dtype = jnp.dtype(task.representation.dtype).name
        return TaskShape(task.dim, task.rank, dtype, task.design)
    if not isinstance(task, TaskShape):
        raise ValueError(f"task={short(task)} must be a LinearTask; {LinearTask.remedy}")
    return task


@part
class LinearAlgorithm(FederatedAlgorithm):
    """An algorithm on a linear task.

    Args:
        task: only its shapes are kept, as a `TaskShape`; `simulate` brings the values.
        step_size: of gradient steps.

    Raises:
        ValueError: a field is out of range.
    """

    task: Any = field(converter=_as_shape)
    step_size: StepSize

    def random_subspace(self, key: Key, data: LinearTask) -> Array:
        """An orthonormal matrix (d, k), uniformly distributed; data of other shapes raise a `ValueError`."""
        expected = (self.task.dim, self.task.rank)
        if (shape := data.representation.shape) != expected:
            raise ValueError(
                f"the data has (dim, rank) = {shape}, but {self.name} was made for {expected}"
            )
        if data.design != self.task.design:
            raise ValueError(
                f"the data has design={data.design!r}, but {self.name} was made for "
                f"{self.task.design!r}; make it for this task"
            )
        return orthonormalize(jax.random.normal(key, expected))
