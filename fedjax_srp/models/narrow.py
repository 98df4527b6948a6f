"""Models with fewer units in their hidden layers."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax

from fedjax_srp.models.split import Split, SplitModel

WIDTHS = ("features", "channels")  # fields of flax's modules and of `Convolution`
ROUNDING = 1e-4  # units, above a whole number


def narrow_model(model: SplitModel, rate: float) -> Split:
    """A model with ceil(rate K) of the K units of each hidden layer; inputs and outputs are complete.

    Args:
        model: a stack of dense layers and convolutions. GroupNorm between them gets one group, whose parameters and
            matrix products are as many.
        rate: share of the units, in (0, 1].

    Raises:
        ValueError: a hidden layer with a kernel whose width is no field of its module.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    kernels = {name: p["kernel"] for side in shapes for name, p in side.items() if "kernel" in p}
    hidden = [name for name in model.layer_names if name in kernels][:-1]
    layers = []
    for layer in model.stack():
        module = layer.module
        if layer.name in hidden:
            width = kernels[layer.name].shape[-1]
            field = next((name for name in WIDTHS if getattr(module, name, None) == width), None)
            if field is None:
                raise ValueError(
                    f"model {model.name!r}: layer {layer.name!r} is a {type(module).__name__} without a field "
                    f"{' or '.join(WIDTHS)}, so that its operations with fewer units cannot be counted; give the clock "
                    "its costs"
                )
            wanted: dict[str, Any] = {field: max(1, math.ceil(rate * width - ROUNDING))}
            module = module.clone(**wanted)
        elif isinstance(module, nn.GroupNorm):
            module = module.clone(num_groups=1, group_size=None)
        layers.append(layer._replace(module=module))
    given = {"cut": model.cut, "dtype": model.input_dtype, "augment": model.augment}
    return Split(model.input_shape, model.num_classes, tuple(layers), model.name, model.loss, **given)
