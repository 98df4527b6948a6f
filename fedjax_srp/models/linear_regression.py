"""Linear regression."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fedjax_srp._checks import check_integer
from fedjax_srp.base import Array
from fedjax_srp.models.mlp import Dense
from fedjax_srp.models.split import Layer, SplitModel, check_dtype, split
from fedjax_srp.record import recorded


def half_square(outputs: Array, y: Array) -> Array:
    """Half the squared error of each example: (batch, 1), (batch,) float -> (batch,)."""
    return 0.5 * (outputs[:, 0] - y) ** 2


@recorded
def linear_regression(dim: int, dtype: Any = jnp.float32) -> SplitModel:
    """x -> x w, without an intercept; what algorithms descend is half the squared error.

    It is all head, the layer `out` with its `kernel` w (dim, 1). For data such as `srp.data.linear_regression`.

    Args:
        dim: d, inputs of an example.
        dtype: of the parameters.

    Returns:
        A `SplitModel`.

    Raises:
        ValueError: a dim below 1.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.linear_regression(20).name
        'linear_regression'
    """
    dim = check_integer("dim", dim, 1)
    check_dtype(dtype)
    layer = Layer("out", Dense(1, use_bias=False, param_dtype=dtype))
    return split("linear_regression", (layer,), "out", (dim,), 1, loss=half_square)
