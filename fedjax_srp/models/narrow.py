"""Models with fewer units in their hidden layers, and the masks that keep these units in the whole model."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_srp.base import Array
from fedjax_srp.models.split import Split, SplitModel, SplitParams

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


def unit_masks(
    names: tuple[str, ...], params: SplitParams, rate: Array, first: Array, gain: Array | float = 1.0
) -> SplitParams:
    """1 for the parameters of a submodel and 0 for the others; `gain` instead of 1 above hidden units.

    It has ceil(rate K) of the K units of a hidden layer, from `first` on, modulo K. Inputs and outputs are complete.

    Args:
        names: of the layers, first to last.
        params: of the whole model.
        rate: () float.
        first: () int32.
        gain: factor of the kernels above a hidden layer.
    """
    layers, masks = {**params.representation, **params.head}, {}
    last = [name for name in names if "kernel" in layers[name]][-1]
    active: Array | None = None  # (units,) of the layer below; None for inputs
    for name in names:
        layer = layers[name]
        kernel = layer.get("kernel")
        if kernel is not None:
            fan_in, width = kernel.shape[-2:]
            # flattened channels come last, so that a dense layer's inputs repeat them
            below = jnp.ones(fan_in) if active is None else gain * jnp.tile(active, fan_in // active.shape[0])
            place = (jnp.arange(width, dtype=jnp.int32) - first) % width
            wanted = place.astype(float) < rate * width - ROUNDING
            active = above = jnp.ones(width) if name == last else wanted.astype(float)
            masks[name] = {"kernel": jnp.broadcast_to(jnp.outer(below, above), kernel.shape)}
        flat = {leaf: jnp.ones_like(w) if active is None else active for leaf, w in layer.items() if leaf != "kernel"}
        masks[name] = {**masks.get(name, {}), **flat}
        masks[name] = {leaf: mask.astype(layer[leaf].dtype) for leaf, mask in masks[name].items()}
    return SplitParams(*({name: masks[name] for name in side} for side in params))
