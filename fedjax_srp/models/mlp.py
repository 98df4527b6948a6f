"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .._checks import check_integer
from ..base import Array
from .split import Layer, SplitModel, split


class Dense(nn.Dense):
    """A dense layer that takes examples of any shape."""

    def __call__(self, inputs: Array) -> Array:
        return super().__call__(inputs.reshape(inputs.shape[0], -1))


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: Sequence[int] = (512, 256, 64),
    cut: str | None = "out",
    dtype: Any = jnp.float32,
) -> SplitModel:
    """Dense layers fc1, fc2, ... with ReLU, then the linear layer `out`.

    Args:
        input_shape: shape of one example; flattened.
        num_classes: width of `out`.
        hidden: widths of fc1, fc2, ...; the default is the paper's for the MNIST family (SRPFL, appendix C).
        cut: first layer of the head: "out" for FedRep's, "fc3" for the last two layers that LG-FedAvg shares; None for
            a model without a head.
        dtype: of the parameters.

    Returns:
        A `SplitModel`.

    Raises:
        ValueError: `cut` is no layer of the model, or a width below 1.
    """
    for i, width in enumerate(hidden):
        check_integer(f"hidden[{i}]", width, 1)
    layers = [Layer(f"fc{i}", Dense(width, param_dtype=dtype), jax.nn.relu) for i, width in enumerate(hidden, 1)]
    layers.append(Layer("out", Dense(num_classes, param_dtype=dtype)))
    return split("mlp", layers, cut, tuple(input_shape), num_classes, dtype)
