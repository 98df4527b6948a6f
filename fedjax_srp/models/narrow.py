"""Models with fewer units in their hidden layers: smaller models, or masks of a whole model."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_srp.base import Array
from fedjax_srp.models.split import Split, SplitModel, SplitParams

WIDTHS = ("features", "channels")  # fields of flax's modules and of `Convolution`
ROUNDING = 1e-4  # excess over a whole number of units that is taken for a rounding error


def narrow_model(model: SplitModel, rate: float) -> Split:
    """Make a model with ceil(rate K) of the K units of each hidden layer.

    It has all inputs and outputs.

    Args:
        model: a stack of dense layers and convolutions. GroupNorm between them gets one group,
            which does not change the number of its parameters.
        rate: share of the units, in (0, 1].

    Raises:
        ValueError: a hidden layer has a kernel whose width is no field of its module.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = {**shapes.representation, **shapes.head}
    hidden = [name for name in model.layer_names if "kernel" in params.get(name, {})][:-1]
    layers = []
    for layer in model.stack():
        module = layer.module
        if layer.name in hidden:
            width = params[layer.name]["kernel"].shape[-1]
            field = next(
                (name for name in WIDTHS if getattr(module, name, None) == width), None
            )
            if field is None:
                raise ValueError(
                    f"model {model.name!r}: layer {layer.name!r} is a {type(module).__name__} "
                    f"without a field {' or '.join(WIDTHS)}, so its operations with fewer units "
                    "cannot be counted; give the clock costs"
                )
            fewer: dict[str, Any] = {field: max(1, math.ceil(rate * width - ROUNDING))}
            module = module.clone(**fewer)
        elif isinstance(module, nn.GroupNorm):
            module = module.clone(num_groups=1, group_size=None)
        layers.append(layer._replace(module=module))
    return Split(
        model.input_shape,
        model.num_classes,
        tuple(layers),
        model.name,
        model.loss,
        cut=model.cut,
        dtype=model.input_dtype,
        augment=model.augment,
    )


def unit_masks(
    names: tuple[str, ...],
    params: SplitParams,
    rate: Array,
    first: Array,
    gain: Array | float = 1.0,
) -> SplitParams:
    """Return masks of a submodel: 1, or `gain` in kernels above a hidden layer; 0 elsewhere.

    The submodel has ceil(rate K) of the K units of a hidden layer, from `first` on, modulo K, and
    all inputs and outputs.

    Args:
        names: of the layers, first to last.
        params: of the whole model.
        rate: () float.
        first: () int32.
        gain: factor of the kernels above a hidden layer.
    """
    layers = {**params.representation, **params.head}
    last = [name for name in names if "kernel" in layers[name]][-1]
    masks = {}
    active: Array | None = None  # (units,) of the layer below; None for inputs
    for name in names:
        layer = layers[name]
        kernel = layer.get("kernel")
        mask_of_kernel = None
        if kernel is not None:
            fan_in, width = kernel.shape[-2:]
            below = jnp.ones(fan_in)
            if active is not None:
                # The channel axis is the last, so flattened images repeat the channels in a dense
                # layer's inputs.
                below = gain * jnp.tile(active, fan_in // active.shape[0])
            position = (jnp.arange(width, dtype=jnp.int32) - first) % width
            is_active = position.astype(float) < rate * width - ROUNDING
            above = jnp.ones(width) if name == last else is_active.astype(float)
            mask_of_kernel = jnp.broadcast_to(jnp.outer(below, above), kernel.shape)
            active = above
        masks[name] = {}
        for leaf_name, leaf in layer.items():
            mask = mask_of_kernel if leaf_name == "kernel" else active
            if mask is None:  # before the first kernel
                mask = jnp.ones_like(leaf)
            masks[name][leaf_name] = mask.astype(leaf.dtype)
    return SplitParams(
        representation={name: masks[name] for name in params.representation},
        head={name: masks[name] for name in params.head},
    )


def narrow(
    names: tuple[str, ...],
    params: SplitParams,
    rate: Array,
    first: Array,
    gain: Array | float = 1.0,
) -> SplitParams:
    """Return the parameters of a submodel, with zeros for all others, see `unit_masks`."""
    return jax.tree.map(
        jnp.multiply, params, unit_masks(names, params, rate, first, gain)
    )
