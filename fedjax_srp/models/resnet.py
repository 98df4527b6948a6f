"""ResNet-18 for small images, with BatchNorm or GroupNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array
from fedjax_srp.models.convolution import Convolution, Strategy, check_images
from fedjax_srp.models.dense import Dense
from fedjax_srp.models.lenet import BLOCK
from fedjax_srp.models.split import Layer, SplitModel, identity
from fedjax_srp.parts.part import Count, part


def mean_pool(x: Array) -> Array:
    """The mean of each channel, (batch, h, w, c) -> (batch, c)."""
    return jnp.mean(x, axis=(1, 2))


class ConvNorm(nn.Module):
    """A convolution without bias, padded to keep the image's size, then a normalisation."""

    channels: int
    kernel_size: tuple[int, int]
    stride: int
    groups: int | None  # None: BatchNorm
    strategy: str
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, h, w, c) -> (batch, ceil(h / stride), ceil(w / stride), channels)."""
        x = Convolution(
            self.channels,
            self.kernel_size,
            self.strategy,
            self.param_dtype,
            nn.initializers.he_normal(),
            padding=self.kernel_size[0] // 2,
            stride=self.stride,
            use_bias=False,
            name="conv",
        )(x)
        options = {
            "epsilon": 1e-5,
            "param_dtype": self.param_dtype,
            "force_float32_reductions": False,
            "name": "norm",
        }
        if self.groups is None:
            return nn.BatchNorm(momentum=0.9, use_fast_variance=False, **options)(x)
        return nn.GroupNorm(self.groups, **options)(x)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a residual connection, or a 1 x 1 one where shapes differ."""

    channels: int
    stride: int
    groups: int | None
    strategy: str
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, h, w, c) -> (batch, ceil(h / stride), ceil(w / stride), channels)."""
        same = (self.groups, self.strategy, self.param_dtype)
        out = jax.nn.relu(
            ConvNorm(self.channels, (3, 3), self.stride, *same, name="first")(x)
        )
        out = ConvNorm(self.channels, (3, 3), 1, *same, name="second")(out)
        if x.shape[-1] != self.channels or self.stride != 1:
            x = ConvNorm(self.channels, (1, 1), self.stride, *same, name="shortcut")(x)
        return jax.nn.relu(out + x)


@part
class ResNet18(SplitModel):
    """ResNet-18 (He et al., 2016) for CIFAR, with 11,173,962 parameters for ten classes.

    A 3 x 3 convolution without pooling, then four stages of two residual blocks, the mean over the
    image, and `out`.

    Args:
        input_shape: (h, w, c) or (h, w) of one image, at least 8 x 8.
        num_classes: width of `out`.
        channels: of the four stages; the last three halve the image.
        norm: "batch" for BatchNorm, whose statistics are averaged, or personal in `FedBN`; "group"
            for GroupNorm, which has none.
        groups: of GroupNorm; 2 in "Adaptive Federated Optimization" (Reddi et al., 2021).
        convolution: as for `LeNet5`.
        cut: first layer of the head, of conv1, block1 to block8, out; None for a model without a
            head.

    Raises:
        ValueError: images are too small, or channels are not multiples of groups.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.ResNet18((32, 32, 3), num_classes=10).layer_names[-2:]
        ('block8', 'out')
    """

    channels: tuple[Count, Count, Count, Count] = (64, 128, 256, 512)
    norm: Literal["batch", "group"] = "batch"
    groups: Count = 2
    convolution: Strategy = "auto"

    def __post_init__(self) -> None:
        check_images(self.name, self.input_shape, 8)
        if self.norm == "group" and any(width % self.groups for width in self.channels):
            raise ValueError(
                f"groups={self.groups} does not divide channels={self.channels}; "
                "choose one that does"
            )
        super().__post_init__()

    @override
    def stack(self) -> Sequence[Layer]:
        groups = None if self.norm == "batch" else self.groups
        same = (groups, self.convolution, self.dtype)
        first = ConvNorm(self.channels[0], (3, 3), 1, *same)
        layers = [Layer("conv1", first, jax.nn.relu, block=BLOCK)]
        for number in range(1, 9):
            stride = 2 if number in (3, 5, 7) else 1
            module = ResidualBlock(self.channels[(number - 1) // 2], stride, *same)
            activation = mean_pool if number == 8 else identity
            layers.append(Layer(f"block{number}", module, activation, block=BLOCK))
        layers.append(Layer("out", Dense(self.num_classes, param_dtype=self.dtype)))
        return layers
