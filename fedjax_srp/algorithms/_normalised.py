"""Updates divided by the length of local training, for unequal numbers of steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.local import Trained
from fedjax_srp.algorithms.training import LocalTraining, num_steps, step_size
from fedjax_srp.base import Array, ClientOutput, Examples, PyTree


class NormalisedMessage(NamedTuple):
    """A client's message."""

    direction: PyTree  # (w - w_i) / length; zero without steps
    length: Array  # () float


def gradient_weights(
    training: LocalTraining, examples: Examples, counts_momentum: bool = True
) -> Array:
    """||a_i||_1 of FedNova, (): sum of the weights of the gradients in an update.

    It is tau_i without momentum, and more with momentum, since a gradient then moves the
    model in later steps too. Optimizers other than `SGD` count as having no momentum.
    """
    check_equal_steps(training.optimizer)
    beta = None
    if counts_momentum:
        beta = getattr(training.optimizer, "momentum", None)
    if beta is None:
        beta = 0.0
    steps = num_steps(training, examples).astype(float)
    # sum over k = 1 .. tau of (1 - beta^k) / (1 - beta)
    return (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)


def check_equal_steps(optimizer: Any) -> None:
    """Raise a `ValueError` if step sizes differ within a round."""
    if callable(getattr(optimizer, "learning_rate", None)):
        raise ValueError(
            f"optimizer={optimizer!r}: its step size is a schedule over local steps, but "
            "this method gives all steps the same weight; give srp.SGD(learning_rate) "
            "with a number, or a function of the round that returns one"
        )


def total_step(
    training: LocalTraining, examples: Examples, counts_momentum: bool = True
) -> Array:
    """Sum of a client's step sizes in a round, (): eta tau_i, more with momentum."""
    weights = gradient_weights(training, examples, counts_momentum)
    return step_size(training.optimizer) * weights


def divide(tree: PyTree, length: Array) -> PyTree:
    """Divide a tree by a length; zeros where the length is zero."""
    safe = jnp.where(length > 0, length, 1)
    quotient = lambda leaf: jnp.where(length > 0, leaf / safe.astype(leaf.dtype), 0)
    return jax.tree.map(quotient, tree)


def normalised_output(
    before: PyTree, after: Trained, length: Array, weight: Array
) -> ClientOutput:
    """Output of a client.

    A client without steps has no weight in the mean direction, but in the mean length.
    """
    direction = divide(jax.tree.map(jnp.subtract, before, after.params), length)
    weights = NormalisedMessage(jnp.where(length > 0, weight, 0), weight)  # pyright: ignore[reportArgumentType]
    message = NormalisedMessage(direction, length)
    return ClientOutput(message, weight=weights, loss=after.loss)


def mean_direction(mean: NormalisedMessage) -> PyTree:
    """The mean direction of the clients that took steps; zeros if there are none."""
    return jax.tree.map(lambda leaf: jnp.where(mean.length > 0, leaf, 0), mean.direction)


def move(params: PyTree, direction: PyTree, length: Array) -> PyTree:
    """w - length * direction."""
    return jax.tree.map(lambda w, d: w - length.astype(w.dtype) * d, params, direction)
