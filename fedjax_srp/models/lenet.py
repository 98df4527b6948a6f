"""LeNet-5 as the SRPFL paper has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_integer, check_integers
from fedjax_srp.base import Array, Key
from fedjax_srp.models.convolution import Convolution, Strategy, max_pool, resolve
from fedjax_srp.models.mlp import Dense
from fedjax_srp.models.split import Layer, SplitModel, check_dtype, split
from fedjax_srp.record import recorded

BLOCK = 8  # images whose intermediate results fit a core's cache


def pooled_relu(x: Array) -> Array:
    """ReLU and 2 x 2 max pooling, (batch, h, w, c) -> (batch, h // 2, w // 2, c)."""
    return jax.nn.relu(max_pool(x))  # as the ReLU before the pooling, on a quarter of the values


def dropout(rate: float) -> Callable[[Key, Array], Array]:
    """Noise for a `Layer`: each value is 0 with probability `rate`, else scaled by 1 / (1 - rate).

    Raises:
        ValueError: a rate outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout_rate={rate}: give a probability in [0, 1)")

    def drop(key: Key, x: Array) -> Array:
        kept = jax.random.bernoulli(key, 1 - rate, x.shape)
        return jnp.where(kept, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))

    return drop


@recorded
def lenet5(
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int] = (64, 64),
    hidden: Sequence[int] = (120, 64),
    dropout_rate: float = 0.0,
    cut: str | None = "out",
    convolution: Strategy = "auto",
    dtype: Any = jnp.float32,
) -> SplitModel:
    """LeNet-5: twice (5 x 5 convolution without padding, ReLU, 2 x 2 max pooling), then fc1, fc2 with ReLU, then `out`.

    The defaults are the paper's for CIFAR-10 (SRPFL, appendix C); `lenet5_cifar100` has those for CIFAR-100.

    Args:
        input_shape: (h, w, c) or (h, w) of one image, at least 16 x 16.
        num_classes: width of `out`.
        channels: of the convolutions conv1 and conv2.
        hidden: widths of the dense layers fc1 and fc2.
        dropout_rate: probability with which training drops an output of fc2.
        cut: first layer of the head, of conv1, conv2, fc1, fc2, out; None for a model without a head.
        convolution: "winograd" or "patches", which are matrix products, or "xla". "auto" is the measured choice on a
            CPU (patches for conv1, winograd for conv2; xla's gradient is about thirty times slower in a loop), and xla
            elsewhere, which is not measured.
        dtype: of the parameters.

    Returns:
        A `SplitModel`.

    Raises:
        ValueError: an image too small, `cut` no layer, a width below 1, a dropout rate outside [0, 1), an unknown
            convolution.
    """
    return _lenet("lenet5", input_shape, num_classes, channels, hidden, dropout_rate, cut, convolution, dtype)


@recorded
def lenet5_cifar100(
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int] = (64, 128),
    hidden: Sequence[int] = (256, 128),
    dropout_rate: float = 0.6,
    cut: str | None = "out",
    convolution: Strategy = "auto",
    dtype: Any = jnp.float32,
) -> SplitModel:
    """`lenet5` at the paper's sizes for CIFAR-100, with one dropout after the second dense layer (SRPFL, appendix C).

    Args:
        input_shape: as for `lenet5`.
        num_classes: width of `out`.
        channels: of conv1 and conv2.
        hidden: widths of fc1 and fc2.
        dropout_rate: probability with which training drops an output of fc2.
        cut: first layer of the head.
        convolution: as for `lenet5`.
        dtype: of the parameters.

    Returns:
        A `SplitModel`.

    Raises:
        ValueError: as `lenet5`.
    """
    return _lenet("lenet5_cifar100", input_shape, num_classes, channels, hidden, dropout_rate, cut, convolution, dtype)


def _lenet(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int],
    hidden: Sequence[int],
    dropout_rate: float,
    cut: str | None,
    convolution: str,
    dtype: Any,
) -> SplitModel:
    shape = check_integers("input_shape", input_shape, 1)
    check_integer("num_classes", num_classes, 1)
    if len(shape) not in (2, 3) or min(shape[:2]) < 16:
        raise ValueError(
            f"input_shape={shape}: {name} takes images (h, w) or (h, w, c) of at least 16 x 16; mlp takes any shape"
        )
    for argument, widths in (("channels", channels), ("hidden", hidden)):
        if len(check_integers(argument, widths, 1)) != 2:
            raise ValueError(f"{argument}={tuple(widths)}: {name} has two of them")
    resolve(convolution)
    check_dtype(dtype)
    noise = dropout(dropout_rate) if dropout_rate else None
    layers = [
        Layer(f"conv{i}", Convolution(width, strategy=convolution, param_dtype=dtype), pooled_relu, block=BLOCK)
        for i, width in enumerate(channels, 1)
    ]
    layers += [
        Layer("fc1", Dense(hidden[0], param_dtype=dtype), jax.nn.relu),
        Layer("fc2", Dense(hidden[1], param_dtype=dtype), jax.nn.relu, noise),
        Layer("out", Dense(num_classes, param_dtype=dtype)),
    ]
    return split(name, layers, cut, shape, num_classes, dtype)
