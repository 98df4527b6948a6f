"""Models that are cut in two: a representation below a named layer, a head from that layer on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..base import Array, Key, PyTree, named_key


class SplitParams(NamedTuple):
    """Parameters of a split model: `{layer name: parameters}` of either side of the cut."""

    representation: PyTree
    head: PyTree


class SplitModel(NamedTuple):
    """A model in two parts. Which part is personal is the algorithm's affair, not the model's.

    Attributes:
        name: as in `srp.models.names()`.
        init: `key -> SplitParams`.
        represent: `(representation, (batch, *input_shape), key=None) -> features (batch, ...)`. With a key it is in
            training: inputs are augmented and dropout drops; without, it is judged.
        classify: `(head, features, key=None) -> logits (batch, num_classes)`.
        num_classes: width of the output.
        input_shape: shape of one example.
        recut: `layer name or None -> SplitModel`: the same model, cut elsewhere.
        layers: names of the layers, first to last.
        random_below: whether `represent` is random in training, so that features change from epoch to epoch.
    """

    name: str
    init: Callable[[Key], SplitParams]
    represent: Callable[..., Array]
    classify: Callable[..., Array]
    num_classes: int
    input_shape: tuple[int, ...]
    recut: Callable[[str | None], SplitModel]
    layers: tuple[str, ...]
    random_below: bool = False

    def cut_above(self, head_layers: int) -> SplitModel:
        """The same model with its last `head_layers` layers as head.

        Raises:
            ValueError: the model has fewer layers.
        """
        if not 0 <= head_layers <= len(self.layers):
            raise ValueError(
                f"head_layers={head_layers} of model {self.name!r}, which has the {len(self.layers)} layers "
                f"{', '.join(self.layers)}"
            )
        return self.recut(self.layers[-head_layers] if head_layers else None)

    def logits(self, params: SplitParams, x: Array, key: Key | None = None) -> Array:
        """The whole model: `(batch, *input_shape) -> (batch, num_classes)`; with a key, in training."""
        return self.classify(params.head, self.represent(params.representation, x, key), key)

    def check_fits(self, data: Any) -> None:
        """Raises `ValueError` where the examples or labels of `data` do not fit the model."""
        if data.num_classes > self.num_classes:
            raise ValueError(
                f"labels of data set {data.name!r} reach {data.num_classes - 1} but model {self.name!r} has "
                f"{self.num_classes} classes; build it with num_classes={data.num_classes}"
            )
        if tuple(data.example_shape) != self.input_shape:
            raise ValueError(
                f"examples of data set {data.name!r} have shape {tuple(data.example_shape)} but model {self.name!r} "
                f"takes {self.input_shape}; build it with input_shape={tuple(data.example_shape)}"
            )


class Layer(NamedTuple):
    """A named step of a model: a flax module, an activation, and in training noise (dropout)."""

    name: str
    module: nn.Module
    activation: Callable[[Array], Array] = lambda x: x
    noise: Callable[[Key, Array], Array] | None = None


def split(
    name: str,
    layers: Sequence[Layer],
    cut: str | None,
    input_shape: tuple[int, ...],
    num_classes: int,
    dtype: Any = jnp.float32,
    augment: Callable[[Key, Array], Array] | None = None,
) -> SplitModel:
    """Cuts a stack of layers in front of the layer named `cut`.

    Args:
        name: of the model.
        layers: applied in this order to `(batch, *input_shape)`.
        cut: the first layer of the head; None leaves the head empty, so that the whole model is representation.
        input_shape: shape of one example.
        num_classes: width of the last layer.
        dtype: of the inputs.
        augment: `(key, (batch, *input_shape)) -> (batch, *input_shape)`, what becomes of inputs in training.

    Raises:
        ValueError: no layer is called `cut`.
    """
    names = [layer.name for layer in layers]
    if cut is not None and cut not in names:
        raise ValueError(f"cut={cut!r} is no layer of model {name!r}; its layers are {', '.join(names)} (or None)")
    position = len(layers) if cut is None else names.index(cut)
    below, above = layers[:position], layers[position:]

    def apply(part: Sequence[Layer], params: PyTree, x: Array, key: Key | None = None) -> Array:
        for layer in part:
            x = layer.activation(layer.module.apply({"params": params[layer.name]}, x))  # type: ignore[arg-type]
            if layer.noise is not None and key is not None:
                x = layer.noise(named_key(key, layer.name), x)
        return x

    def init(key: Key) -> SplitParams:
        params, x = {}, jnp.zeros((1, *input_shape), dtype)
        for layer in layers:
            params[layer.name] = layer.module.init(named_key(key, layer.name), x)["params"]
            x = apply([layer], params, x)
        return SplitParams({la.name: params[la.name] for la in below}, {la.name: params[la.name] for la in above})

    def represent(representation: PyTree, x: Array, key: Key | None = None) -> Array:
        if augment is not None and key is not None:
            x = augment(named_key(key, "augment"), x)
        return apply(below, representation, x, key)

    def classify(head: PyTree, features: Array, key: Key | None = None) -> Array:
        return apply(above, head, features, key)

    def recut(cut: str | None) -> SplitModel:
        return split(name, layers, cut, input_shape, num_classes, dtype, augment)

    random_below = augment is not None or any(layer.noise is not None for layer in below)
    shape = tuple(input_shape)
    return SplitModel(name, init, represent, classify, num_classes, shape, recut, tuple(names), random_below)


def cross_entropy(logits: Array, y: Array) -> Array:
    """Cross-entropy of each example: (batch, num_classes), (batch,) int -> (batch,)."""
    is_label = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)  # the gradient of a gather would be a slow scatter
    picked = jnp.sum(jnp.where(is_label, logits, jnp.zeros((), logits.dtype)), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked
