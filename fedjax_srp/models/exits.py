"""Classifiers at several depths of a model: exits between blocks of layers."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.models.initialization import torch_params
from fedjax_srp.models.normalization import init_module
from fedjax_srp.models.split import (
    Layer,
    Split,
    SplitModel,
    SplitParams,
    _add_noise,
    _forward,
    _in_blocks,
    cross_entropy,
    smallest_block,
)


class Classifier(nn.Dense):
    """A dense layer on the mean of its inputs over all positions, (batch, ..., channels)."""

    @override
    def __call__(self, inputs: Array) -> Array:
        """(batch, ..., channels) -> (batch, features)."""
        positions = tuple(range(1, inputs.ndim - 1))
        return super().__call__(jnp.mean(inputs, axis=positions))


def check_layers(algorithm: str, model: SplitModel) -> None:
    """Raise a `ValueError` for a model that cannot be left between two of its layers."""
    if model.layer_names != tuple(layer.name for layer in model.stack()):
        raise ValueError(
            f"model {model.name!r} does not apply its layers one after the other, so {algorithm} cannot "
            "end it earlier; choose e.g. mlp or cnn"
        )
    x = jax.ShapeDtypeStruct((1, *model.input_shape), model.input_dtype)
    params = jax.eval_shape(model.init, jax.random.key(0))
    out = jax.eval_shape(model.logits, params, x)
    if out.ndim != 2:
        raise ValueError(
            f"model {model.name!r} has outputs {out.shape[1:]} of an example, but {algorithm} needs one row of "
            "scores; choose e.g. mlp, cnn or lstm"
        )


def block_ends(model: SplitModel, num_blocks: int) -> tuple[str, ...]:
    """Return the last layers of all blocks but the last one, of about equally many layers.

    The model's output layer belongs to the last block. A model of fewer layers has as many
    blocks as hidden layers.
    """
    hidden = model.layer_names[:-1]
    number = len(hidden)
    ends = {-(-b * number // num_blocks) for b in range(1, num_blocks)}
    return tuple(hidden[end - 1] for end in sorted(ends) if 0 < end < number)


def block_of_layers(model: SplitModel, exits: tuple[str, ...]) -> dict[str, int]:
    """Return the number of each layer's block, from 0; a block ends with each exit."""
    blocks = {}
    block = 0
    for name in model.layer_names:
        blocks[name] = block
        if name in exits:
            block += 1
    return blocks


def init_exits(
    key: Key, model: SplitModel, params: SplitParams, exits: tuple[str, ...]
) -> dict[str, PyTree]:
    """Return the initial parameters of a classifier after each of these layers."""
    module = _classifier(model, params)
    layers = {**params.representation, **params.head}
    x = jnp.zeros((1, *model.input_shape), model.input_dtype)
    found = {}
    for layer in model.stack():
        x = _forward(layer, layers, x)
        if layer.name in exits:
            key_exit = named_key(key, f"exit {layer.name}")
            found[layer.name], _ = init_module(module, key_exit, x)
    if model.initialization is not None:
        return torch_params(named_key(key, "exits"), found)
    return found


def exit_logits(
    model: SplitModel,
    params: SplitParams,
    exits: dict[str, PyTree],
    x: Array,
    key: Key | None = None,
) -> Array:
    """Logits of all classifiers, the model's own the last: (batch, classifiers, num_classes)."""
    stack = model.stack()
    layers = {**params.representation, **params.head}
    module = _classifier(model, params)

    def apply(x: Array) -> Array:
        logits = []
        for layer in stack:
            x = _forward(layer, layers, x, key is not None)
            x = _add_noise(layer, x, key)
            if layer.name in exits:
                out: Any = module.apply({"params": exits[layer.name]}, x)
                logits.append(out)
        return jnp.stack([*logits, x], axis=1)

    if key is None:
        return _in_blocks(apply, x, smallest_block(stack))
    return apply(model._augmented(x, key))


def ended_after(model: SplitModel, name: str, cut: str | None = None) -> Split:
    """Return the model that ends with the classifier after a layer.

    Args:
        model: the whole model.
        name: of the last layer.
        cut: first layer of the head.
    """
    stack = model.stack()
    last = [layer.name for layer in stack].index(name)
    params = jax.eval_shape(model.init, jax.random.key(0))
    classifier = Layer(f"exit {name}", _classifier(model, params))
    loss = model.loss
    if type(model).loss is SplitModel.loss:
        loss = cross_entropy  # by which a `Split` knows that it takes classes
    return Split(
        model.input_shape,
        model.num_classes,
        (*stack[: last + 1], classifier),
        model.name,
        loss,
        cut=cut,
        dtype=model.input_dtype,
        augment=model.augment,
    )


def _classifier(model: SplitModel, params: PyTree) -> Classifier:
    dtype = jnp.result_type(*jax.tree.leaves(params))
    return Classifier(model.num_classes, param_dtype=dtype)
