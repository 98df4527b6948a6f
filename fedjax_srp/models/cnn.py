"""The CNN of the paper "FedAvg with fine tuning": 3 x 3 convolutions in three blocks."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from typing_extensions import override

from fedjax_srp.models.convolution import Convolution, Strategy, check_images
from fedjax_srp.models.lenet import BLOCK, pooled_relu
from fedjax_srp.models.mlp import dense_layers
from fedjax_srp.models.split import Layer, SplitModel
from fedjax_srp.parts.part import Count, part


@part
class CNN(SplitModel):
    """Three blocks of two 3 x 3 convolutions with ReLU and 2 x 2 max pooling, fc1, fc2, `out`.

    The network of Collins et al., "FedAvg with fine tuning" (section 5.2, appendix C.2).
    Convolutions keep the size of the image by zero padding. The paper has 512 features before
    `out`; the size of the kernels and the other widths are our choice.

    Args:
        input_shape: (h, w, c) or (h, w) of one image, at least 8 x 8; pooling drops an odd last
            row.
        num_classes: width of `out`.
        channels: of the convolutions conv1 to conv6, two a block.
        hidden: widths of the dense layers fc1 and fc2; the last is the number of features.
        convolution: as for `LeNet5`; "auto" was measured with its 5 x 5 kernels.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.CNN((32, 32, 3), num_classes=100).layer_names[-1]
        'out'
    """

    channels: tuple[Count, Count, Count, Count, Count, Count] = (
        32,
        64,
        128,
        128,
        256,
        256,
    )
    hidden: tuple[Count, Count] = (1024, 512)
    convolution: Strategy = "auto"

    def __post_init__(self) -> None:
        check_images(self.name, self.input_shape, 8)  # three poolings leave 1 x 1
        super().__post_init__()

    @override
    def stack(self) -> Sequence[Layer]:
        layers = []
        for i, width in enumerate(self.channels, 1):
            module = Convolution(
                width, (3, 3), self.convolution, self.dtype, padding="SAME"
            )
            activation = pooled_relu if i % 2 == 0 else jax.nn.relu
            layers.append(Layer(f"conv{i}", module, activation, block=BLOCK))
        return layers + dense_layers(self, self.hidden)
