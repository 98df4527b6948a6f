"""Models that are cut in two: a representation below a named layer, a head from that layer on."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from fedjax_srp._checks import check_integer, check_integers, checked, nearest, short
from fedjax_srp.backend import platform
from fedjax_srp.base import Array, Examples, Key, PyTree, named_key
from fedjax_srp.loops import sequential
from fedjax_srp.record import Options, describe


def cross_entropy(logits: Array, y: Array) -> Array:
    """Cross-entropy of each example: (batch, num_classes), (batch,) int -> (batch,)."""
    is_label = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)  # the gradient of a gather would be a slow scatter
    picked = jnp.sum(jnp.where(is_label, logits, jnp.zeros((), logits.dtype)), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked


class SplitParams(NamedTuple):
    """Parameters of a split model: `{layer name: parameters}` of either side of the cut."""

    representation: PyTree
    head: PyTree


class SplitModel(NamedTuple):
    """A model in two parts. Which part is personal is the algorithm's affair, not the model's.

    With a key a model is in training: inputs are augmented and dropout drops. Without, it is judged.

    Attributes:
        name: as in `srp.models.names()`.
        init: `key -> SplitParams`.
        represent: `(representation, (batch, *input_shape), key=None) -> features (batch, ...)`.
        classify: `(head, features, key=None) -> logits (batch, num_classes)`.
        num_classes: width of the output.
        input_shape: shape of one example.
        recut: `layer name or None -> SplitModel`: the same model, cut elsewhere.
        layers: names of the layers, first to last.
        stem: `(representation, inputs) -> (batch, ...)`: what `represent` computes before anything random, the same in
            every epoch while the representation is frozen. Fast for many inputs; take no gradient through it.
        rest: `(representation, stem's output, key=None) -> features`: `represent` is `rest` after `stem`.
        settled: names of the layers that `stem` has behind it; `rest` does without their parameters.
        takes_tokens: whether inputs are integers (tokens); else they are floats.
        options: what made it, by name, its cut included; None: unknown.
        loss: `(logits, y (batch,)) -> (batch,)`, of each example, what algorithms descend.
    """

    name: str
    init: Callable[[Key], SplitParams]
    represent: Callable[..., Array]
    classify: Callable[..., Array]
    num_classes: int
    input_shape: tuple[int, ...]
    recut: Callable[[str | None], SplitModel]
    layers: tuple[str, ...]
    stem: Callable[[PyTree, Array], Array]
    rest: Callable[..., Array]
    settled: tuple[str, ...]
    takes_tokens: bool = False
    options: Mapping[str, Any] | None = None
    loss: Callable[[Array, Array], Array] = cross_entropy

    def cut_above(self, head_layers: int) -> SplitModel:
        """The same model with its last `head_layers` layers as head.

        Raises:
            ValueError: the model has fewer layers.
        """
        if (head_layers := check_integer("head_layers", head_layers, 0)) > len(self.layers):
            raise ValueError(
                f"head_layers={head_layers} of model {self.name!r}, which has the {len(self.layers)} layers "
                f"{', '.join(self.layers)}"
            )
        return self.recut(self.layers[-head_layers] if head_layers else None)

    def logits(self, params: SplitParams, x: Array, key: Key | None = None) -> Array:
        """The whole model: `(batch, *input_shape) -> (batch, num_classes)`; with a key, in training."""
        return self.classify(params.head, self.represent(params.representation, x, key), key)

    def check_fits(self, data: Any) -> None:
        """Raises `ValueError` where the examples or labels of `data`, as far as it tells them, do not fit the model."""
        name, shape = getattr(data, "name", type(data).__name__), getattr(data, "example_shape", None)
        num_classes, client = getattr(data, "num_classes", None) or 0, None
        if hasattr(data, "train_client") and not getattr(data, "is_sharded", False):  # which was looked at as a whole
            client = jax.eval_shape(lambda: data.train_client(jnp.int32(0)))
        if isinstance(client, Examples) and shape is None:
            shape = client.x.shape[1:]
        if num_classes > self.num_classes:
            raise ValueError(
                f"labels of data set {name!r} reach {num_classes - 1} but model {self.name!r} has {self.num_classes} "
                f"classes; build it with num_classes={num_classes}"
            )
        if shape is not None and tuple(shape) != self.input_shape:
            raise ValueError(
                f"examples of data set {name!r} have shape {tuple(shape)} but model {self.name!r} takes "
                f"{self.input_shape}; build it with input_shape={tuple(shape)}"
            )
        if isinstance(client, Examples):
            self._check_type(name, client.x.dtype)
            self._check_labels(name, client.y.dtype)

    def _check_labels(self, data_name: str, dtype: Any) -> None:
        if self.loss is cross_entropy and not jnp.issubdtype(dtype, jnp.integer):
            raise ValueError(
                f"labels of data set {data_name!r} are {dtype} and model {self.name!r} takes classes; choose "
                "model=srp.models.linear_regression(dim), or give labels as integers"
            )

    def _check_type(self, data_name: str, dtype: Any) -> None:
        has_tokens = jnp.issubdtype(dtype, jnp.integer)
        if self.takes_tokens and not has_tokens:
            raise ValueError(
                f"model {self.name!r} takes integer tokens, data set {data_name!r} has {dtype} inputs; choose "
                "model='mlp'"
            )
        if has_tokens and not self.takes_tokens:
            raise ValueError(
                f"model {self.name!r} takes floats, data set {data_name!r} has {dtype} inputs; choose model='lstm' for "
                "tokens, or give numbers as floats"
            )


class Layer(NamedTuple):
    """A named step of a model.

    Attributes:
        name: of the layer and its parameters.
        module: a flax module.
        activation: applied to what the module returns.
        noise: `(key, x) -> x`, applied after that in training (dropout).
        block: on a CPU, how many examples the model handles at once when it is judged; None for any number. For layers
            with large intermediate results, which should stay in the cache.
    """

    name: str
    module: nn.Module
    activation: Callable[[Array], Array] = lambda x: x
    noise: Callable[[Key, Array], Array] | None = None
    block: int | None = None


def check_dtype(dtype: Any, kind: Any = jnp.floating) -> None:
    """Raises a ValueError of one line unless `dtype` is one of a kind: parameters are floats."""
    try:
        fits = (
            dtype is not None
            and not isinstance(dtype, jax.Array | np.ndarray)
            and jnp.issubdtype(jnp.dtype(dtype), kind)
        )
    except (TypeError, ValueError):
        fits = False
    if not fits:
        numbers = "floats" if kind is jnp.floating else "numbers"
        raise ValueError(f"dtype={short(dtype)} is no type of {numbers}; give e.g. jnp.float32")


@checked
def split(
    name: str,
    layers: Sequence[Layer],
    cut: str | None,
    input_shape: tuple[int, ...],
    num_classes: int,
    dtype: Any = jnp.float32,
    loss: Callable[[Array, Array], Array] = cross_entropy,
) -> SplitModel:
    """Cuts a stack of layers in front of the layer named `cut`.

    Args:
        name: of the model.
        layers: applied in this order to `(batch, *input_shape)`.
        cut: the first layer of the head; None leaves the head empty, so that the whole model is representation.
        input_shape: shape of one example.
        num_classes: width of the last layer.
        dtype: of the inputs; integers are tokens.
        loss: `(outputs, y) -> (batch,)`, of each example.

    Raises:
        ValueError: no layer is called `cut`, two layers have one name, or a module is none of flax.linen; in `init`, a
            module that keeps more than parameters, or that fails.
    """
    for place, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise ValueError(f"layers[{place}]={short(layer)} is no layer; give srp.models.Layer(name, module)")
        if not isinstance(layer.module, nn.Module):
            raise ValueError(
                f"layer {layer.name!r}: module={short(layer.module)} is no flax.linen module; give e.g. nn.Dense(10), "
                "called, and functions as activation"
            )
    input_shape = check_integers("input_shape", input_shape, 1)
    check_integer("num_classes", num_classes, 1)
    check_dtype(dtype, jnp.number)
    names = tuple(layer.name for layer in layers)
    if twice := [layer for layer, number in collections.Counter(names).items() if number > 1]:
        raise ValueError(f"layers: {twice[0]!r} is the name of several of model {name!r}; give each its own")
    if cut is not None and cut not in names:
        hint = nearest(cut, names)
        hints = f"{hint}; choose from {', '.join(names)}, or None"
        raise ValueError(f"cut={short(cut)} is no layer of model {name!r}{hints}")
    position = len(layers) if cut is None else names.index(cut)
    below, above = layers[:position], layers[position:]
    # Everything up to the first noise is settled.
    num_settled = next((i for i, layer in enumerate(below, 1) if layer.noise is not None), len(below))

    def forward(layer: Layer, params: PyTree, x: Array) -> Array:
        return layer.activation(layer.module.apply({"params": params[layer.name]}, x))  # type: ignore[arg-type]

    def noisy(layer: Layer, x: Array, key: Key | None) -> Array:
        return x if layer.noise is None or key is None else layer.noise(named_key(key, layer.name), x)

    def apply(part: Sequence[Layer], params: PyTree, x: Array, key: Key | None = None) -> Array:
        if key is None:
            block = min((layer.block for layer in part if layer.block), default=None)
            return _in_blocks(lambda x: apply_noisy(part, params, x, None), x, block)
        return apply_noisy(part, params, x, key)

    def apply_noisy(part: Sequence[Layer], params: PyTree, x: Array, key: Key | None) -> Array:
        for layer in part:
            x = noisy(layer, forward(layer, params, x), key)
        return x

    def init(key: Key) -> SplitParams:
        params, x = {}, jnp.zeros((1, *input_shape), dtype)
        for layer in layers:
            with _in_layer(layer, x):
                variables = layer.module.init(named_key(key, layer.name), x)
            if others := sorted(set(variables) - {"params"}):
                raise ValueError(
                    f"layer {layer.name!r} keeps {', '.join(others)}, and only parameters are trained and averaged; "
                    "take a module without, e.g. GroupNorm in place of BatchNorm"
                )
            params[layer.name] = variables.get("params", {})
            with _in_layer(layer, x):
                x = forward(layer, params, x)
        return SplitParams({la.name: params[la.name] for la in below}, {la.name: params[la.name] for la in above})

    def represent(representation: PyTree, x: Array, key: Key | None = None) -> Array:
        return apply(below, representation, x, key)

    def classify(head: PyTree, features: Array, key: Key | None = None) -> Array:
        return apply(above, head, features, key)

    def stem(representation: PyTree, x: Array) -> Array:
        part = below[:num_settled]

        def run(representation: PyTree, x: Array) -> Array:
            return apply(part, representation, x)

        in_turn = platform() == "cpu" and any(layer.block for layer in part)
        return sequential(run)(representation, x) if in_turn else run(representation, x)

    def rest(representation: PyTree, x: Array, key: Key | None = None) -> Array:
        if num_settled:
            x = noisy(below[num_settled - 1], x, key)
        return apply(below[num_settled:], representation, x, key)

    def recut(cut: str | None) -> SplitModel:
        return split(name, layers, cut, input_shape, num_classes, dtype, loss)

    return SplitModel(
        name=name,
        init=init,
        represent=represent,
        classify=classify,
        num_classes=num_classes,
        input_shape=tuple(input_shape),
        recut=recut,
        layers=names,
        stem=stem,
        rest=rest,
        settled=names[:num_settled],
        takes_tokens=bool(jnp.issubdtype(dtype, jnp.integer)),
        loss=loss,
    )


@contextlib.contextmanager
def _in_layer(layer: Layer, x: Array) -> Iterator[None]:
    """Says in one line which layer failed."""
    try:
        yield
    except (TypeError, ValueError, FlaxError) as error:
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(
            f"layer {layer.name!r}, module(x) with x {getattr(x, 'shape', type(x).__name__)}: {said}; a module takes x "
            "alone, and dropout goes into noise"
        ) from error


def _in_blocks(function: Callable[[Array], Array], x: Array, block: int | None) -> Array:
    """`function` of the rows of `x`, on a CPU at most `block` rows at a time."""
    if block is None or x.shape[0] <= block or platform() != "cpu":
        return function(x)
    num_blocks = -(-x.shape[0] // block)
    rows = -(-x.shape[0] // num_blocks)
    padded = jnp.pad(x, ((0, num_blocks * rows - x.shape[0]), *((0, 0),) * (x.ndim - 1)))
    out = jax.lax.map(function, padded.reshape(num_blocks, rows, *x.shape[1:]))
    return out.reshape(num_blocks * rows, *out.shape[2:])[: x.shape[0]]


@checked
def augmented(model: SplitModel, augment: Callable[[Key, Array], Array]) -> SplitModel:
    """The model whose inputs are changed at random in training, anew in every step; judged, it is the same model.

    Args:
        model: any.
        augment: `(key, (batch, *input_shape)) -> (batch, *input_shape)`, for example `crop_and_flip()`.

    Returns:
        A `SplitModel`; none of its features can be kept from epoch to epoch, so head epochs cost more.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> plain = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> model = srp.models.augmented(plain, srp.models.crop_and_flip(padding=1))
        >>> x = jax.random.normal(jax.random.key(0), (5, 8, 8))
        >>> params = model.init(jax.random.key(1))
        >>> bool((model.logits(params, x) == plain.logits(params, x)).all())
        True
    """

    def represent(representation: PyTree, x: Array, key: Key | None = None) -> Array:
        x = x if key is None else augment(named_key(key, "augment"), x)
        return model.represent(representation, x, key)

    options = None if model.options is None else Options({**model.options, "augment": describe(augment)})
    return model._replace(
        options=options,
        represent=represent,
        recut=lambda cut: augmented(model.recut(cut), augment),
        stem=lambda representation, x: x,
        rest=represent,
        settled=(),
    )
