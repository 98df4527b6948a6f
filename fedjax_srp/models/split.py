"""Models cut in two: a representation below a named layer, and a head from that layer on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from typing_extensions import override

from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.models.augment import CropAndFlip
from fedjax_srp.models.dense import Dense
from fedjax_srp.models.fits import check_fits
from fedjax_srp.models.initialization import check_torch, torch_params
from fedjax_srp.models.normalization import apply_module, init_module, is_batch_norm
from fedjax_srp.parts.checks import check_integer, nearest, short
from fedjax_srp.parts.part import Count, field, part, reason_of, undefined
from fedjax_srp.xla.backend import platform
from fedjax_srp.xla.loops import sequential


def cross_entropy(logits: Array, y: Array) -> Array:
    """Cross-entropy of each example: (batch, num_classes), (batch,) int -> (batch,)."""
    # the gradient of a gather would be a slow scatter
    is_label = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)
    of_label = jnp.sum(jnp.where(is_label, logits, jnp.zeros((), logits.dtype)), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - of_label


class SplitParams(NamedTuple):
    """Parameters of a split model: `{layer name: parameters}` on each side of the cut."""

    representation: PyTree
    head: PyTree


def identity(x: Array) -> Array:
    """No activation."""
    return x


class Layer(NamedTuple):
    """A named step of a model.

    Attributes:
        name: of the layer and its parameters.
        module: a flax module.
        activation: applied to the module's output.
        noise: `(key, x) -> x`, applied after the activation in training (dropout).
        block: number of a client's examples that evaluations process at once on a CPU or GPU; None
            for no limit. For layers with large intermediate results, which should stay in a CPU's
            cache and fit a GPU for a whole chunk.
    """

    name: str
    module: nn.Module
    activation: Callable[[Array], Array] = identity
    noise: Callable[[Key, Array], Array] | None = None
    block: int | None = None

    def __repr__(self) -> str:
        """The layer in one line, without what is at its default."""
        shown = [repr(self.name), short_module(self.module)]
        if self.activation is not identity:
            shown.append(named(self.activation))
        for field_name in ("noise", "block"):
            value = getattr(self, field_name)
            if value is not None:
                shown.append(f"{field_name}={named(value)}")
        return f"Layer({', '.join(shown)})"


def named(value: Any) -> str:
    """A function by its name alone, and anything else by its `repr`, in one line."""
    name = getattr(value, "__name__", None)
    return " ".join(repr(value).split()) if name is None else name


def short_module(module: Any) -> str:
    """The constructor of a flax module, without fields at their default."""
    if not dataclasses.is_dataclass(module):
        return named(module)
    arguments = []
    for each in dataclasses.fields(module):
        value = getattr(module, each.name)
        if each.name not in ("parent", "name") and value is not each.default:
            arguments.append(f"{each.name}={_shown(value)}")
    return f"{type(module).__name__}({', '.join(arguments)})"


def _shown(value: Any) -> str:
    if isinstance(value, nn.Module):
        return short_module(value)
    if isinstance(value, tuple | list) and any(map(callable, value)):
        return f"({', '.join(map(_shown, value))})"
    return named(value)


def check_dtype(dtype: Any, kind: Any) -> None:
    """Raise a `ValueError` unless `dtype` is a dtype of a kind, `jnp.floating` or `jnp.number`."""
    try:
        is_type = dtype is not None and not isinstance(dtype, jax.Array | np.ndarray)
        fits = is_type and jnp.issubdtype(jnp.dtype(dtype), kind)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        numbers = "floats" if kind is jnp.floating else "numbers"
        raise ValueError(
            f"dtype={short(dtype)} is no type of {numbers}; give e.g. jnp.float32"
        )


def _as_dtype(dtype: Any) -> Any:
    check_dtype(dtype, jnp.number)
    return jnp.dtype(dtype)


@part
class SplitModel:
    """A stack of layers, cut in front of the layer named `cut`.

    The algorithm decides which of the two parts is personal. With a key a model is in training
    mode, with augmentation and dropout; without, in evaluation mode. A subclass defines `stack`,
    the layers; equal fields make equal models.

    Args:
        input_shape: shape of one example.
        num_classes: width of the output.
        cut: first layer of the head; None leaves the head empty, so that the whole model is
            representation.
        dtype: of the parameters.
        augment: augmentation in every training step: `CropAndFlip()`, or a function `(key, x) ->
            x`. Features then cannot be reused between epochs, so head epochs cost more.
        initialization: "torch" for PyTorch's defaults, used in FedRep's experiments; None for
            Flax's.

    Attributes:
        takes_classes: True if the loss takes integer labels.
    """

    name = "model"
    remedy: ClassVar[str] = (
        "give one of srp.models, called: srp.models.MLP(input_shape, num_classes), or from_module(...)"
    )
    takes_classes: ClassVar[bool] = True
    dtypes: ClassVar[Any] = jnp.floating  # kind of `dtype`

    input_shape: tuple[Count, ...]
    num_classes: Count
    _: dataclasses.KW_ONLY
    cut: str | None = "out"
    dtype: Any = field(converter=_as_dtype, default=jnp.dtype(jnp.float32))
    augment: CropAndFlip | Callable[[Key, Array], Array] | None = None
    initialization: Literal["torch"] | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype, self.dtypes)
        names = self.layer_names
        if self.cut is not None and self.cut not in names:
            hints = f"{nearest(self.cut, names)}; choose from {', '.join(names)}, or None"
            raise ValueError(
                f"cut={short(self.cut)} is no layer of model {self.name!r}{hints}"
            )
        if self.initialization is not None:
            by_flax = dataclasses.replace(self, initialization=None)
            check_torch(self.name, jax.eval_shape(by_flax.init, jax.random.key(0)))

    def stack(self) -> Sequence[Layer]:
        """The layers, applied in this order to `(batch, *input_shape)`."""
        undefined(self.stack)

    def loss(self, logits: Array, y: Array) -> Array:
        """The training loss of each example: (batch, num_classes), (batch,) -> (batch,)."""
        return cross_entropy(logits, y)

    @property
    def is_regression(self) -> bool:
        """True for one output and a loss of numbers; integers are then numbers too."""
        return self.num_classes == 1 and not self.takes_classes

    @property
    def input_dtype(self) -> Any:
        """Type of the inputs."""
        return self.dtype

    @property
    def takes_tokens(self) -> bool:
        """True if inputs are integers (tokens), False if they are floats."""
        return bool(jnp.issubdtype(self.input_dtype, jnp.integer))

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the layers, first to last."""
        return tuple(layer.name for layer in self.stack())

    @property
    def _sides(self) -> tuple[list[Layer], list[Layer]]:
        layers = list(self.stack())
        position = len(layers)
        if self.cut is not None:
            position = [layer.name for layer in layers].index(self.cut)
        return layers[:position], layers[position:]

    @property
    def _stem_layers(self) -> list[Layer]:
        """The first layers of the representation, up to a noise; none if inputs are augmented."""
        if self.augment is not None:
            return []
        stem = []
        for layer in self._sides[0]:
            stem.append(layer)
            if layer.noise is not None:
                break
        return stem

    @property
    def stem_layer_names(self) -> tuple[str, ...]:
        """Names of the layers of `stem`; `rest` does not need their parameters."""
        return tuple(layer.name for layer in self._stem_layers)

    @property
    def first_dense(self) -> str | None:
        """The name of the first layer if it is a plain dense layer of plain examples; else None."""
        cls = type(self)
        for name in ("represent", "classify", "logits"):
            if getattr(cls, name) is not getattr(SplitModel, name):
                return None
        first = self.stack()[0]
        if self.augment is None and type(first.module) is Dense and first.module.is_plain:
            return first.name
        return None

    def recut(self, cut: str | None) -> Any:
        """The same model, cut elsewhere."""
        return dataclasses.replace(self, cut=cut)

    def cut_above(self, head_layers: int) -> Any:
        """The same model with its last `head_layers` layers as head."""
        head_layers = check_integer(
            "head_layers", head_layers, 0, maximum=len(self.layer_names)
        )
        return self.recut(self.layer_names[-head_layers] if head_layers else None)

    def init(self, key: Key) -> SplitParams:
        """The initial parameters."""
        params = {}
        x = jnp.zeros((1, *self.input_shape), self.input_dtype)
        below, above = self._sides
        for layer in below + above:
            key_layer = named_key(key, layer.name)
            with _layer_errors(layer, x):
                params[layer.name], others = init_module(layer.module, key_layer, x)
            if others:
                raise ValueError(
                    f"layer {layer.name!r} keeps {', '.join(sorted(others))}, but only parameters "
                    "and BatchNorm's statistics are trained and averaged; give a module without "
                    "other state"
                )
            with _layer_errors(layer, x):
                x = _forward(layer, params, x)
        if self.initialization is not None:
            params = torch_params(key, params)
        return SplitParams(
            representation={layer.name: params[layer.name] for layer in below},
            head={layer.name: params[layer.name] for layer in above},
        )

    def is_normalisation(self, params: PyTree) -> PyTree:
        """Flags of the leaves that FedBN personalizes: BatchNorm's scales, biases, statistics."""
        return is_batch_norm(params)

    def represent(
        self, representation: PyTree, x: Array, key: Key | None = None
    ) -> Array:
        """(representation, `(batch, *input_shape)`) -> features (batch, ...)."""
        return _apply(self._sides[0], representation, self._augmented(x, key), key)

    def _augmented(self, x: Array, key: Key | None) -> Array:
        if self.augment is None or key is None:
            return x
        return self.augment(named_key(key, "augment"), x)

    def classify(self, head: PyTree, features: Array, key: Key | None = None) -> Array:
        """(head, features) -> logits (batch, num_classes)."""
        return _apply(self._sides[1], head, features, key)

    def logits(self, params: SplitParams, x: Array, key: Key | None = None) -> Array:
        """The whole model, `(batch, *input_shape)` -> (batch, num_classes); a key: in training."""
        return self.classify(
            params.head, self.represent(params.representation, x, key), key
        )

    def stem(self, representation: PyTree, x: Array) -> Array:
        """The first part of `represent`, the same in every epoch with a frozen representation.

        Fast for many inputs; take no gradient through it.
        """
        layers = self._stem_layers

        def run(representation: PyTree, x: Array) -> Array:
            return _apply(layers, representation, x)

        if platform() == "cpu" and smallest_block(layers) is not None:
            return sequential(run)(representation, x)
        return run(representation, x)

    def rest(self, representation: PyTree, x: Array, key: Key | None = None) -> Array:
        """(representation, output of `stem`) -> features, as `represent` with frozen BatchNorm."""
        stem = self._stem_layers
        x = self._augmented(x, key)
        if stem:
            x = _add_noise(stem[-1], x, key)
        return _apply(self._sides[0][len(stem) :], representation, x, key, is_frozen=True)

    def check_fits(self, data: Any) -> None:
        """Raise a `ValueError` if the data, as far as known, do not fit the model."""
        check_fits(self, data)


def check_functions(layer: Layer) -> None:
    """Raise a `ValueError` unless activation and noise of a layer are functions."""
    _check_function(layer, "activation", layer.activation, "flax.linen.relu")
    if layer.noise is not None:
        _check_function(layer, "noise", layer.noise, "srp.models.Dropout(0.5), or None")


def _check_function(layer: Layer, field: str, value: Any, remedy: str) -> None:
    if not callable(value) or isinstance(value, nn.Module):
        raise ValueError(
            f"layer {layer.name!r}: {field}={short(value)} is no function; give e.g. {remedy}"
        )


def _forward(layer: Layer, params: PyTree, x: Array, in_training: bool = False) -> Array:
    return layer.activation(
        apply_module(layer.module, params[layer.name], x, in_training)
    )


def _add_noise(layer: Layer, x: Array, key: Key | None) -> Array:
    if layer.noise is None or key is None:
        return x
    return layer.noise(named_key(key, layer.name), x)


def _apply(
    layers: Sequence[Layer],
    params: PyTree,
    x: Array,
    key: Key | None = None,
    is_frozen: bool = False,
) -> Array:
    in_training = key is not None and not is_frozen

    def apply(x: Array) -> Array:
        for layer in layers:
            x = _forward(layer, params, x, in_training)
            x = _add_noise(layer, x, key)
        return x

    if key is None:
        return _in_blocks(apply, x, smallest_block(layers))
    return apply(x)


def smallest_block(layers: Sequence[Layer]) -> int | None:
    """The least `block` of the layers, None if no layer has one."""
    return min((layer.block for layer in layers if layer.block), default=None)


@contextlib.contextmanager
def _layer_errors(layer: Layer, x: Array) -> Iterator[None]:
    """Raise errors of a layer's module as a `ValueError` that names the layer."""
    try:
        yield
    except (TypeError, ValueError, FlaxError) as error:
        reason = reason_of(error)
        shape = getattr(x, "shape", type(x).__name__)
        raise ValueError(
            f"layer {layer.name!r}, module(x) with x {shape}: {reason}; a module takes only x, "
            "and dropout goes into noise"
        ) from error


def _in_blocks(function: Callable[[Array], Array], x: Array, block: int | None) -> Array:
    """Apply `function` to the rows of `x`, on a CPU or GPU at most `block` rows at a time."""
    if block is None or x.shape[0] <= block or platform() not in ("cpu", "gpu"):
        return function(x)
    num_blocks = -(-x.shape[0] // block)
    rows = -(-x.shape[0] // num_blocks)
    padding = [(0, 0)] * x.ndim
    padding[0] = (0, num_blocks * rows - x.shape[0])
    padded = jnp.pad(x, padding)
    if platform() == "gpu":
        # a gradient keeps only the inputs of all blocks, and computes one block again at a time
        function = jax.checkpoint(function)
    out = jax.lax.map(function, padded.reshape(num_blocks, rows, *x.shape[1:]))
    return out.reshape(num_blocks * rows, *out.shape[2:])[: x.shape[0]]


def without_lists(module: nn.Module) -> nn.Module:
    """Replace a module's lists by tuples, which can be hashed: `nn.Sequential([...])`."""
    tuples: dict[str, Any] = {}
    for member in dataclasses.fields(module):
        value = getattr(module, member.name)
        if isinstance(value, list):
            tuples[member.name] = tuple(value)
    if not tuples:
        return module
    return module.clone(**tuples)


def _as_layers(layers: Sequence[Any]) -> tuple[Layer, ...]:
    """Layers with different names, whose modules can be hashed; those of a record are mappings."""
    layers = [
        Layer(**layer)
        if isinstance(layer, Mapping) and layer.keys() == {*Layer._fields}
        else layer
        for layer in layers
    ]
    for index, layer in enumerate(layers):
        module = getattr(layer, "module", layer)
        if not isinstance(layer, Layer) or not isinstance(module, nn.Module):
            raise ValueError(
                f"layers[{index}]={short(module)} is no layer with a flax.linen module; give "
                "srp.models.Layer(name, module) with an instance, e.g. nn.Dense(10); functions are activations"
            )
        check_functions(layer)
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names) or not names:
        raise ValueError(
            f"layers have the names {names}; give one or more layers with different names"
        )
    return tuple(layer._replace(module=without_lists(layer.module)) for layer in layers)


@part
class Split(SplitModel):
    """Your own model: a stack of flax modules.

    Args:
        input_shape: shape of one example.
        num_classes: width of the last layer.
        layers: applied in this order to `(batch, *input_shape)`.
        name: of the model in messages and records.
        loss: `(outputs, y) -> (batch,)`, of each example.
        cut: first layer of the head; None leaves the head empty.
        dtype: of the inputs; integers are tokens.

    Example:
        >>> import flax.linen as nn, fedjax_srp as srp
        >>> hidden = srp.models.Layer("fc", nn.Dense(8), nn.relu)
        >>> out = srp.models.Layer("out", nn.Dense(2))
        >>> srp.models.Split((30,), 2, [hidden, out], name="small").layer_names
        ('fc', 'out')
    """

    dtypes: ClassVar[Any] = jnp.number
    layers: tuple[Any, ...] = field(converter=_as_layers)
    name: str = "split"  # type: ignore[misc]
    loss: Callable[[Array, Array], Array] = cross_entropy  # type: ignore[assignment]

    @property
    @override
    def takes_classes(self) -> bool:  # type: ignore[override]
        return self.loss is cross_entropy

    @override
    def stack(self) -> Sequence[Layer]:
        return self.layers
