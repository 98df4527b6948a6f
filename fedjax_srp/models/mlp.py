"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_choice, check_integer, check_integers
from fedjax_srp.base import Array
from fedjax_srp.models.split import Layer, SplitModel, check_dtype, split
from fedjax_srp.record import recorded


class Dense(nn.Dense):
    """A dense layer that takes examples of any shape."""

    def __call__(self, inputs: Array) -> Array:
        """(batch, ...) -> (batch, features)."""
        return super().__call__(inputs.reshape(inputs.shape[0], -1))


@recorded
def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: Sequence[int] = (512, 256, 64),
    cut: str | None = "out",
    output: Literal["logits", "softmax"] = "logits",
    dtype: Any = jnp.float32,
) -> SplitModel:
    """Dense layers fc1, fc2, ... with ReLU, then the linear layer `out`.

    Args:
        input_shape: shape of one example; flattened.
        num_classes: width of `out`.
        hidden: widths of fc1, fc2, ...; the default is the paper's for the MNIST family (SRPFL, appendix C).
        cut: first layer of the head: "out" for FedRep's, "fc3" for the last two layers that LG-FedAvg shares; None for
            a model without a head.
        output: "softmax" passes the logits through a softmax and calls the result logits, so that the cross-entropy
            applies it a second time, as the SRPFL authors' code does; only for comparison with it.
        dtype: of the parameters.

    Returns:
        A `SplitModel`.

    Raises:
        ValueError: `cut` is no layer of the model, a width below 1, or `output` is neither of the two.
    """
    check_choice("output", output, ("logits", "softmax"))
    input_shape, hidden = check_integers("input_shape", input_shape, 1), check_integers("hidden", hidden, 1)
    check_integer("num_classes", num_classes, 1)
    check_dtype(dtype)
    layers = [Layer(f"fc{i}", Dense(width, param_dtype=dtype), jax.nn.relu) for i, width in enumerate(hidden, 1)]
    out = Layer("out", Dense(num_classes, param_dtype=dtype))
    layers.append(out if output == "logits" else out._replace(activation=jax.nn.softmax))
    return split("mlp", layers, cut, input_shape, num_classes, dtype)
