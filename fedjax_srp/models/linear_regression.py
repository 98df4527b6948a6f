"""Linear regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from typing_extensions import override

from fedjax_srp.base import Array
from fedjax_srp.models.dense import Dense
from fedjax_srp.models.split import Layer, SplitModel
from fedjax_srp.parts.part import AtMost, Count, part


def half_square(outputs: Array, y: Array) -> Array:
    """Half the squared error of each example: (batch, 1), (batch,) float -> (batch,)."""
    return 0.5 * (outputs[:, 0] - y) ** 2


@part
class LinearRegression(SplitModel):
    """Linear regression x -> x w without an intercept; the loss is half the squared error.

    The whole model is the head: the layer `out` with its `kernel` w (dim, 1). For data such as
    `srp.data.linear_regression`.

    Args:
        input_shape: (dim,) of one example.
        num_classes: number of outputs, 1.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.LinearRegression((20,)).name
        'linear_regression'
    """

    name: ClassVar[str] = "linear_regression"
    takes_classes: ClassVar[bool] = False

    num_classes: Annotated[
        Count, AtMost(1), "linear_regression has one output; leave it out"
    ] = 1

    @override
    def stack(self) -> Sequence[Layer]:
        return [Layer("out", Dense(1, use_bias=False, param_dtype=self.dtype))]

    @override
    def loss(self, logits: Array, y: Array) -> Array:
        """Half the squared error of each example."""
        return half_square(logits, y)
