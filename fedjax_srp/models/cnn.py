"""A network of 3 x 3 convolutions in three blocks, as the paper on FedAvg's representations has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_integer, check_integers
from fedjax_srp.models.convolution import Convolution, Strategy, resolve
from fedjax_srp.models.lenet import BLOCK, pooled_relu
from fedjax_srp.models.mlp import Dense
from fedjax_srp.models.split import Layer, SplitModel, check_dtype, split
from fedjax_srp.record import recorded

CONVOLUTIONS, SMALLEST = 6, 8  # three poolings leave 1 x 1 of 8 x 8


@recorded
def cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int] = (32, 64, 128, 128, 256, 256),
    hidden: Sequence[int] = (1024, 512),
    cut: str | None = "out",
    convolution: Strategy = "auto",
    dtype: Any = jnp.float32,
) -> SplitModel:
    """Three times (3 x 3 convolution, ReLU, 3 x 3 convolution, ReLU, 2 x 2 max pooling), fc1, fc2 with ReLU, `out`.

    The network of Collins et al., "FedAvg with fine tuning" (section 5.2, appendix C.2). Convolutions keep the size of
    the image: zeros stand around it. The paper says that there are 512 features before `out`; the kernels' size and the
    other widths are chosen here.

    Args:
        input_shape: (h, w, c) or (h, w) of one image, at least 8 x 8; pooling leaves an odd last row out.
        num_classes: width of `out`.
        channels: of the convolutions conv1 to conv6, two a block.
        hidden: widths of the dense layers fc1 and fc2; the last is the number of features.
        cut: first layer of the head, of conv1 to conv6, fc1, fc2, out; None for a model without a head.
        convolution: as for `lenet5`, for whose 5 x 5 kernels "auto" was measured.
        dtype: of the parameters.

    Returns:
        A `SplitModel`.

    Raises:
        ValueError: an image too small, `cut` no layer, a width below 1, not six channels or two hidden widths, an
            unknown convolution.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.cnn((32, 32, 3), num_classes=100).layers[-1]
        'out'
    """
    shape = check_integers("input_shape", input_shape, 1)
    check_integer("num_classes", num_classes, 1)
    if len(shape) not in (2, 3) or min(shape[:2]) < SMALLEST:
        raise ValueError(
            f"input_shape={shape}: cnn takes images (h, w) or (h, w, c) of at least {SMALLEST} x {SMALLEST}; mlp takes "
            "any shape"
        )
    for argument, widths, number in (("channels", channels, CONVOLUTIONS), ("hidden", hidden, 2)):
        if len(check_integers(argument, widths, 1)) != number:
            raise ValueError(f"{argument}={tuple(widths)}: cnn has {number} of them; give as many")
    resolve(convolution)
    check_dtype(dtype)
    layers = [
        Layer(
            f"conv{i}",
            Convolution(width, (3, 3), strategy=convolution, param_dtype=dtype, padding=1),
            pooled_relu if i % 2 == 0 else jax.nn.relu,
            block=BLOCK,
        )
        for i, width in enumerate(channels, 1)
    ]
    layers += [
        Layer("fc1", Dense(hidden[0], param_dtype=dtype), jax.nn.relu),
        Layer("fc2", Dense(hidden[1], param_dtype=dtype), jax.nn.relu),
        Layer("out", Dense(num_classes, param_dtype=dtype)),
    ]
    return split("cnn", layers, cut, shape, num_classes, dtype)
