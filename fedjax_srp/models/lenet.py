"""The LeNet-5 of the SRPFL paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, Key
from fedjax_srp.models.convolution import Convolution, Strategy, check_images, max_pool
from fedjax_srp.models.mlp import dense_layers
from fedjax_srp.models.split import Layer, SplitModel
from fedjax_srp.parts.part import AtLeast, Below, Count, Static, part

BLOCK = 8  # number of images whose intermediate results fit a core's cache
Rate = Annotated[Static[float], AtLeast(0), Below(1), "give a probability in [0, 1)"]


def pooled_relu(x: Array) -> Array:
    """ReLU and 2 x 2 max pooling, (batch, h, w, c) -> (batch, h // 2, w // 2, c)."""
    # equals ReLU before pooling, on a quarter of the values
    return jax.nn.relu(max_pool(x))


@part
class Dropout:
    """Dropout, for `noise` of a `Layer`.

    Each value is 0 with probability `rate`, else scaled by 1 / (1 - rate).
    """

    rate: Rate

    def __call__(self, key: Key, x: Array) -> Array:
        """(key, x) -> x."""
        is_kept = jax.random.bernoulli(key, 1 - self.rate, x.shape)
        return jnp.where(
            is_kept, x / jnp.asarray(1 - self.rate, x.dtype), jnp.zeros((), x.dtype)
        )


@part
class LeNet5(SplitModel):
    """LeNet-5: two 5 x 5 convolutions, each with ReLU and 2 x 2 max pooling, then fc1, fc2, `out`.

    The convolutions have no padding; fc1 and fc2 have ReLU. The defaults are the paper's for
    CIFAR-10 (SRPFL, appendix C); `LeNet5CIFAR100` has those for CIFAR-100.

    Args:
        input_shape: (h, w, c) or (h, w) of one image, at least 16 x 16.
        num_classes: width of `out`.
        channels: of the convolutions conv1 and conv2.
        hidden: widths of the dense layers fc1 and fc2.
        dropout_rate: probability with which training drops an output of fc2.
        convolution: "winograd", "patches" or "tiles", which are matrix products, or "xla". "auto"
            is the measured choice on a CPU (patches for conv1, or tiles for up to 16 channels;
            winograd for conv2; xla's gradient is about thirty times slower in a loop) and a GPU
            (patches), and xla elsewhere (unmeasured).
    """

    channels: tuple[Count, Count] = (64, 64)
    hidden: tuple[Count, Count] = (120, 64)
    dropout_rate: Rate = 0.0
    convolution: Strategy = "auto"

    def __post_init__(self) -> None:
        check_images(self.name, self.input_shape, 16)
        super().__post_init__()

    @override
    def stack(self) -> Sequence[Layer]:
        noise = Dropout(self.dropout_rate) if self.dropout_rate else None
        layers = []
        for i, width in enumerate(self.channels, 1):
            module = Convolution(width, (5, 5), self.convolution, self.dtype)
            layers.append(Layer(f"conv{i}", module, pooled_relu, block=BLOCK))
        fc1, fc2, out = dense_layers(self, self.hidden)
        return [*layers, fc1, fc2._replace(noise=noise), out]


@part
class LeNet5CIFAR100(LeNet5):
    """`LeNet5` for CIFAR-100, with dropout after the second dense layer (SRPFL, appendix C)."""

    name: ClassVar[str] = "lenet5_cifar100"

    channels: tuple[Count, Count] = (64, 128)
    hidden: tuple[Count, Count] = (256, 128)
    dropout_rate: Rate = 0.6
