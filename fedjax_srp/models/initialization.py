"""PyTorch's initial parameters, for comparisons with experiments that used them.

Flax draws weights from a (truncated) normal distribution with variance 1 / fan_in and starts biases
at 0. PyTorch, used in FedRep's experiments, draws both uniformly from +-1 / sqrt(fan_in): weights
with a third of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_srp.base import Array, Key, named_key


def check_torch(model: str, params: Any) -> None:
    """Raise a `ValueError` unless all layers with parameters are dense layers or convolutions.

    Args:
        model: name of the model.
        params: its parameters, or their shapes, on both sides of the cut.
    """
    for name, layer in {**params.representation, **params.head}.items():
        if layer and set(layer) != {"kernel", "bias"}:
            raise ValueError(
                f"initialization='torch' needs layers with a kernel and a bias, but {name} of "
                f"model {model!r} has {', '.join(layer)}; leave initialization out"
            )


def torch_params(key: Key, params: Mapping[str, Any]) -> dict[str, Any]:
    """Initialize parameters as `torch.nn.Linear` and `torch.nn.Conv2d` do, whatever the cut.

    Args:
        key: of the model's initialization.
        params: layer -> arrays, or their shapes.
    """
    key = named_key(key, "torch")
    return {name: _uniform(named_key(key, name), layer) for name, layer in params.items()}


def _uniform(key: Key, layer: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    if not layer:
        return {}
    *inputs, _ = layer["kernel"].shape
    bound = 1 / math.sqrt(math.prod(inputs))
    params = {}
    for name, leaf in layer.items():
        key_leaf = named_key(key, name)
        params[name] = jax.random.uniform(key_leaf, leaf.shape, leaf.dtype, -bound, bound)
    return params
