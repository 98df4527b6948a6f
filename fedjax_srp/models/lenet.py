"""LeNet-5 as the SRPFL paper has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Key
from fedjax_srp.models.convolution import Convolution, Strategy, max_pool, resolve
from fedjax_srp.models.mlp import Dense
from fedjax_srp.models.split import Layer, SplitModel
from fedjax_srp.parts import AtLeast, Below, Count, Static, part

BLOCK = 8  # images whose intermediate results fit a core's cache


def pooled_relu(x: Array) -> Array:
    """ReLU and 2 x 2 max pooling, (batch, h, w, c) -> (batch, h // 2, w // 2, c)."""
    return jax.nn.relu(max_pool(x))  # as the ReLU before the pooling, on a quarter of the values


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Noise for a `Layer`: each value is 0 with probability `rate`, else scaled by 1 / (1 - rate).

    Raises:
        ValueError: a rate outside [0, 1).
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout_rate={self.rate}: give a probability in [0, 1)")

    def __call__(self, key: Key, x: Array) -> Array:
        """(key, x) -> x."""
        kept = jax.random.bernoulli(key, 1 - self.rate, x.shape)
        return jnp.where(kept, x / jnp.asarray(1 - self.rate, x.dtype), jnp.zeros((), x.dtype))


@part
class LeNet5(SplitModel):
    """LeNet-5: twice (5 x 5 convolution without padding, ReLU, 2 x 2 max pooling), then fc1, fc2 with ReLU, then `out`.

    The defaults are the paper's for CIFAR-10 (SRPFL, appendix C); `LeNet5CIFAR100` has those for CIFAR-100.

    Args:
        input_shape: (h, w, c) or (h, w) of one image, at least 16 x 16.
        num_classes: width of `out`.
        channels: of the convolutions conv1 and conv2.
        hidden: widths of the dense layers fc1 and fc2.
        dropout_rate: probability with which training drops an output of fc2.
        convolution: "winograd" or "patches", which are matrix products, or "xla". "auto" is the measured choice on a
            CPU (patches for conv1, winograd for conv2; xla's gradient is about thirty times slower in a loop), and xla
            elsewhere, which is not measured.
        cut: first layer of the head, of conv1, conv2, fc1, fc2, out; None for a model without a head.

    Raises:
        ValueError: an image too small, `cut` no layer, a width below 1, a dropout rate outside [0, 1), an unknown
            convolution.
    """

    channels: tuple[Count, ...] = (64, 64)
    hidden: tuple[Count, ...] = (120, 64)
    dropout_rate: Annotated[Static[float], AtLeast(0), Below(1), "give a probability in [0, 1)"] = 0.0
    convolution: Strategy = "auto"

    def __post_init__(self) -> None:
        if len(self.input_shape) not in (2, 3) or min(self.input_shape[:2]) < 16:
            raise ValueError(
                f"input_shape={self.input_shape}: {self.name} takes images (h, w) or (h, w, c) of at least 16 x 16; "
                "mlp takes any shape"
            )
        for argument, widths in (("channels", self.channels), ("hidden", self.hidden)):
            if len(widths) != 2:
                raise ValueError(f"{argument}={widths}: {self.name} has two of them")
        resolve(self.convolution)
        super().__post_init__()

    def stack(self) -> Sequence[Layer]:
        """Convolutions and dense layers."""
        noise = Dropout(self.dropout_rate) if self.dropout_rate else None
        of_type = {"param_dtype": self.dtype}
        convolutions = [
            Layer(f"conv{i}", Convolution(width, strategy=self.convolution, **of_type), pooled_relu, block=BLOCK)
            for i, width in enumerate(self.channels, 1)
        ]
        return [
            *convolutions,
            Layer("fc1", Dense(self.hidden[0], **of_type), jax.nn.relu),
            Layer("fc2", Dense(self.hidden[1], **of_type), jax.nn.relu, noise),
            Layer("out", Dense(self.num_classes, **of_type)),
        ]


@part
class LeNet5CIFAR100(LeNet5):
    """`LeNet5` at the paper's sizes for CIFAR-100, with one dropout after the second dense layer (SRPFL, appendix C).

    Args:
        input_shape: as for `LeNet5`.
        num_classes: width of `out`.
        channels: of conv1 and conv2.
        hidden: widths of fc1 and fc2.
        dropout_rate: probability with which training drops an output of fc2.
        convolution: as for `LeNet5`.
        cut: first layer of the head.

    Raises:
        ValueError: as `LeNet5`.
    """

    name: ClassVar[str] = "lenet5_cifar100"

    channels: tuple[Count, ...] = (64, 128)
    hidden: tuple[Count, ...] = (256, 128)
    dropout_rate: Annotated[Static[float], AtLeast(0), Below(1), "give a probability in [0, 1)"] = 0.6
