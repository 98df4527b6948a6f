"""Updates divided by how far local training could have gone: what unequal numbers of local steps leave comparable."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.local import LocalTraining, Trained, num_steps, step_size
from fedjax_srp.base import Array, ClientOutput, Examples, PyTree


class NormalisedMessage(NamedTuple):
    """A client's message."""

    direction: PyTree  # (w - w_i) / length; zero without steps
    length: Array  # () float


def gradient_weights(training: LocalTraining, examples: Examples, counts_momentum: bool = True) -> Array:
    """||a_i||_1 of FedNova, () float: the sum of the weights that the gradients of a client's steps get in its move.

    That is tau_i, and more under momentum, where a gradient moves the model in later steps too. Optimizers that do not
    tell their momentum count as having none.
    """
    check_equal_steps(training.optimizer)
    momentum = getattr(training.optimizer, "momentum", None) if counts_momentum else None
    beta = 0.0 if momentum is None else momentum
    steps = num_steps(training, examples).astype(float)
    # sum over k = 1 .. tau of (1 - beta^k) / (1 - beta)
    return (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)


def check_equal_steps(optimizer: Any) -> None:
    """Steps are counted alike, whatever their number."""
    if callable(getattr(optimizer, "learning_rate", None)):
        raise ValueError(
            f"optimizer={optimizer!r}: its step size is a schedule over local steps, which are weighed alike here; "
            "give srp.SGD(learning_rate) with a number, or a function of the round that returns such"
        )


def reach(training: LocalTraining, examples: Examples, counts_momentum: bool = True) -> Array:
    """Distance that a client's steps move under a gradient of one, () float: eta tau_i, and more under momentum."""
    return step_size(training.optimizer) * gradient_weights(training, examples, counts_momentum)


def divided(tree: PyTree, length: Array) -> PyTree:
    """The tree over the length; zeros where the length is zero."""
    safe = jnp.where(length > 0, length, 1)
    return jax.tree.map(lambda leaf: jnp.where(length > 0, leaf / safe.astype(leaf.dtype), 0), tree)


def normalised_output(before: PyTree, after: Trained, length: Array, weight: Array) -> ClientOutput:
    """Output of a client: one without steps has no direction, and counts in the mean length all the same."""
    direction = divided(jax.tree.map(jnp.subtract, before, after.params), length)
    weights = NormalisedMessage(jnp.where(length > 0, weight, 0), weight)  # pyright: ignore[reportArgumentType]
    return ClientOutput(NormalisedMessage(direction, length), weight=weights, loss=after.loss)


def mean_direction(mean: NormalisedMessage) -> PyTree:
    """The mean over those who took a step; zeros where nobody did, and the mean is 0 / 0."""
    return jax.tree.map(lambda leaf: jnp.where(mean.length > 0, leaf, 0), mean.direction)


def moved(params: PyTree, direction: PyTree, length: Array) -> PyTree:
    """w - length * direction."""
    return jax.tree.map(lambda w, d: w - length.astype(w.dtype) * d, params, direction)
