"""Initial parameters other than Flax's defaults, for comparisons with other experiments.

Flax draws weights from a (truncated) normal distribution with variance 1 / fan_in and starts biases at 0. PyTorch, used
in FedRep's experiments, draws both uniformly from +-1 / sqrt(fan_in): weights with a third of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_srp.base import Array, Key, named_key


def check_torch(model: str, params: Any) -> None:
    """Raise a ValueError of one line unless `torch_params` knows the layers: dense ones, convolutions, or empty ones.

    Args:
        model: its name.
        params: its parameters, or their shapes, on both sides of the cut.
    """
    for name, layer in {**params.representation, **params.head}.items():
        if layer and set(layer) != {"kernel", "bias"}:
            raise ValueError(
                f"initialization='torch' knows layers with a kernel and a bias, and {name} of model {model!r} has "
                f"{', '.join(layer)}; leave it out"
            )


def torch_params(key: Key, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters initialized as `torch.nn.Linear` and `torch.nn.Conv2d`, for any cut of the model.

    Args:
        key: of the model's initialization.
        params: layer -> arrays, or their shapes.
    """
    key = named_key(key, "torch")
    return {name: _uniform(named_key(key, name), layer) for name, layer in params.items()}


def _uniform(key: Key, layer: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    if not layer:
        return {}
    bound = 1 / math.sqrt(math.prod(layer["kernel"].shape[:-1]))  # (..., inputs, outputs)
    return {
        name: jax.random.uniform(named_key(key, name), leaf.shape, leaf.dtype, -bound, bound)
        for name, leaf in layer.items()
    }
