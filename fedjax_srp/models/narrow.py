"""Models with fewer units in their hidden layers: smaller models, or masks of the parameters of a whole model."""

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
    """A model with ceil(rate K) of the K units of each hidden layer, and all inputs and outputs.

    Args:
        model: a stack of dense layers and convolutions. GroupNorm between them gets one group, which does not change
            the number of its parameters.
        rate: share of the units, in (0, 1].

    Raises:
        ValueError: a hidden layer has a kernel whose width is no field of its module.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    kernels = {
        name: p["kernel"] for side in shapes for name, p in side.items() if "kernel" in p
    }
    hidden = [name for name in model.layer_names if name in kernels][:-1]
    layers = []
    for layer in model.stack():
        module = layer.module
        if layer.name in hidden:
            width = kernels[layer.name].shape[-1]
            field = next(
                (name for name in WIDTHS if getattr(module, name, None) == width), None
            )
            if field is None:
                raise ValueError(
                    f"model {model.name!r}: layer {layer.name!r} is a {type(module).__name__} without a field "
                    f"{' or '.join(WIDTHS)}, so its operations with fewer units cannot be counted; give the clock costs"
                )
            fewer: dict[str, Any] = {field: max(1, math.ceil(rate * width - ROUNDING))}
            module = module.clone(**fewer)
        elif isinstance(module, nn.GroupNorm):
            module = module.clone(num_groups=1, group_size=None)
        layers.append(layer._replace(module=module))
    same = {"cut": model.cut, "dtype": model.input_dtype, "augment": model.augment}
    return Split(
        model.input_shape,
        model.num_classes,
        tuple(layers),
        model.name,
        model.loss,
        **same,
    )


def unit_masks(
    names: tuple[str, ...],
    params: SplitParams,
    rate: Array,
    first: Array,
    gain: Array | float = 1.0,
) -> SplitParams:
    """Masks of a submodel's parameters: 1, or `gain` in kernels above a hidden layer; 0 for all other parameters.

    The submodel has ceil(rate K) of the K units of a hidden layer, from `first` on, modulo K, and all inputs and
    outputs.

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
            # The channel axis is the last, so flattened images repeat the channels in a dense layer's inputs.
            below = (
                jnp.ones(fan_in)
                if active is None
                else gain * jnp.tile(active, fan_in // active.shape[0])
            )
            position = (jnp.arange(width, dtype=jnp.int32) - first) % width
            is_active = position.astype(float) < rate * width - ROUNDING
            active = above = jnp.ones(width) if name == last else is_active.astype(float)
            masks[name] = {
                "kernel": jnp.broadcast_to(jnp.outer(below, above), kernel.shape)
            }
        vectors = {
            n: jnp.ones_like(w) if active is None else active
            for n, w in layer.items()
            if n != "kernel"
        }
        masks[name] = {**masks.get(name, {}), **vectors}
        masks[name] = {
            leaf: mask.astype(layer[leaf].dtype) for leaf, mask in masks[name].items()
        }
    return SplitParams(*({name: masks[name] for name in side} for side in params))


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
