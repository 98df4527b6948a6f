"""Settings of local training: `Training`, a field, and `LocalTraining` in a round.

`num_steps` and `step_size` are for control variates, gradient tracking and normalised
averaging.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import jax.numpy as jnp

from fedjax_srp.algorithms.optimizers import (
    SGD,
    Given,
    Optimizer,
    OptimizerOfRound,
    as_optimizer,
)
from fedjax_srp.base import Array, Examples, RoundContext
from fedjax_srp.parts.part import AtLeast, Count, Weighting, field, part


class LocalTraining(NamedTuple):
    """Local training in one round, or before an evaluation.

    `epochs` or `steps` are multiplied by the units of work.
    """

    optimizer: Optimizer
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    work: Array | int = 1  # () int32: factor of epochs or steps; 0 for no training
    record_loss: bool = False  # compute `Trained.mean_loss`

    def batch_of(self, capacity: int) -> int:
        """Examples in a batch, for clients of this capacity.

        It bounds a batch of an epoch; batches drawn with replacement may be larger.
        """
        if self.epochs is None:
            return self.batch_size
        return min(self.batch_size, capacity)


@part
class Training:
    """Local training: epochs over shuffled data, or steps on random batches.

    Args:
        optimizer: `SGD`, `optimizer(...)` for any of optax, or a function of the round,
            () float from 0, that returns one of these; its state is reset in every round.
            The papers' step size is 0.01 (SRPFL, section 5).
        batch_size: examples per local step; the last batch of an epoch may be smaller.
        epochs: over the client's shuffled examples in a round, per unit of work.
        steps: on batches drawn with replacement, per unit of work, instead of epochs
            (`epochs=None`).
        weighting: of clients in the server's mean, "uniform" (the papers) or
            "num_examples" (their code).

    Raises:
        ValueError: a number is out of range, or neither or both of epochs and steps are
            given.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.Training(optimizer=srp.SGD(0.05, momentum=0.5), epochs=5).batch_size
        10
    """

    remedy: ClassVar[str] = (
        "give srp.Training(optimizer=srp.SGD(0.01), batch_size=10, epochs=1)"
    )

    optimizer: Given | OptimizerOfRound = field(
        converter=partial(as_optimizer, "optimizer"), default=SGD(0.01)
    )
    batch_size: Count = 10
    epochs: Annotated[int, AtLeast(0)] | None = 1
    steps: Annotated[int, AtLeast(0)] | None = None
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"give either epochs or steps, got {self.epochs} and {self.steps}; "
                "set the other to None"
            )

    def in_round(self, context: RoundContext) -> LocalTraining:
        """Training of a client in this round, with its work and the round's optimizer."""
        optimizer = self.optimizer
        if not isinstance(optimizer, Optimizer):
            of_round = cast(OptimizerOfRound, optimizer)
            optimizer = as_optimizer("optimizer", of_round(context.round.astype(float)))
        return LocalTraining(
            optimizer,
            self.batch_size,
            self.epochs,
            self.steps,
            context.work,
            context.record_loss,
        )

    def alone(
        self,
        optimizer: Given | None = None,
        epochs: int | None = None,
        argument: str = "optimizer",
    ):
        """Training of a client outside of rounds, in an evaluation."""
        of_evaluation = optimizer
        if of_evaluation is None:
            of_evaluation = self.optimizer
        if not isinstance(of_evaluation, Optimizer):
            raise ValueError(
                f"{argument}={optimizer!r}: an evaluation has no round number; give "
                f"{argument} an optimizer that does not depend on the round, e.g. "
                "srp.SGD(0.01)"
            )
        if epochs is not None:
            return LocalTraining(of_evaluation, self.batch_size, epochs)
        return LocalTraining(of_evaluation, self.batch_size, self.epochs, self.steps)

    def weight(self, examples: Examples) -> Array:
        """Weight of a client in the mean, () float: 1, or its number of examples."""
        dtype = jnp.zeros(()).dtype
        if self.weighting == "uniform":
            return jnp.ones((), dtype)
        return examples.count.astype(dtype)


def step_size(optimizer: Any) -> float | Array:
    """Return the step size eta of an optimizer, for methods that divide by it.

    Raises:
        ValueError: the optimizer is not `SGD`, or its step size is a schedule.
    """
    if not isinstance(optimizer, SGD) or callable(optimizer.learning_rate):
        raise ValueError(
            f"optimizer={optimizer!r}: this method divides by the step size, which must "
            "be constant; give srp.SGD(learning_rate) with a number"
        )
    return optimizer.learning_rate


def check_step_size(training: Training) -> None:
    """Raise the error of `step_size`; functions of the round are checked later."""
    if isinstance(training.optimizer, Optimizer):
        step_size(training.optimizer)


def num_steps(training: LocalTraining, examples: Examples) -> Array:
    """Number of steps tau_i of `local_sgd`, () int32; 0 without examples or work."""
    work = jnp.asarray(training.work, jnp.int32)
    if training.steps is not None:
        return jnp.where(examples.count > 0, jnp.int32(training.steps) * work, 0)
    num_epochs = jnp.int32(training.epochs or 0) * work
    return num_epochs * steps_per_epoch(training.batch_size, examples)


def steps_per_epoch(batch_size: int, examples: Examples) -> Array:
    """Number of batches of an epoch, () int32."""
    batch_size = min(batch_size, examples.y.shape[0])  # as in `local_sgd`
    return (examples.count + batch_size - 1) // batch_size
