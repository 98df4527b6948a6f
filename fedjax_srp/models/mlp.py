"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
from typing_extensions import override

from fedjax_srp.models.dense import Dense
from fedjax_srp.models.split import Layer, SplitModel
from fedjax_srp.parts.part import Count, part


def dense_layers(model: SplitModel, hidden: Sequence[int]) -> list[Layer]:
    """Return dense layers fc1, fc2, ... with ReLU, of these widths, and the linear layer `out`."""
    layers = []
    for i, width in enumerate(hidden, 1):
        layers.append(Layer(f"fc{i}", Dense(width, param_dtype=model.dtype), jax.nn.relu))
    layers.append(Layer("out", Dense(model.num_classes, param_dtype=model.dtype)))
    return layers


@part
class MLP(SplitModel):
    """Dense layers fc1, fc2, ... with ReLU, then the linear layer `out`.

    Args:
        input_shape: shape of one example; flattened.
        num_classes: width of `out`.
        hidden: widths of fc1, fc2, ...; the default is the paper's for the MNIST family (SRPFL,
            appendix C).
        output: "softmax" applies a softmax to the logits and the cross-entropy a second one, as in
            the SRPFL authors' code; only for comparison with it.
        cut: first layer of the head: "out" for FedRep's, "fc3" for the last two layers that
            LG-FedAvg shares; None for a model without a head.
    """

    hidden: tuple[Count, ...] = (512, 256, 64)
    output: Literal["logits", "softmax"] = "logits"

    @override
    def stack(self) -> Sequence[Layer]:
        *layers, out = dense_layers(self, self.hidden)
        if self.output == "softmax":
            out = out._replace(activation=jax.nn.softmax)
        return [*layers, out]
