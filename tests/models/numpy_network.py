"""Convolutional networks in NumPy."""

import jax
import numpy as np


def numpy_convolution(x, kernel):
    height, width = x.shape[1] - kernel.shape[0] + 1, x.shape[2] - kernel.shape[1] + 1
    out = np.zeros((x.shape[0], height, width, kernel.shape[3]))
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            out += x[:, i : i + height, j : j + width] @ kernel[i, j]
    return out


def numpy_network(params, x, pooled, padding):
    """Apply zero-padded convolutions conv1, conv2, ..., then fc1, fc2 and out, in float64.

    `pooled` is True for each convolution that is followed by 2 x 2 max pooling.
    """
    params = jax.tree.map(
        lambda a: np.asarray(a, np.float64), params.representation | params.head
    )
    x = np.asarray(x, np.float64)
    x = x[..., None] if x.ndim == 3 else x
    for i, is_pooled in enumerate(pooled, 1):
        layer, around = params[f"conv{i}"], (padding, padding)
        x = np.pad(x, ((0, 0), around, around, (0, 0)))
        x = np.maximum(numpy_convolution(x, layer["kernel"]) + layer["bias"], 0)
        if is_pooled:
            height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
            x = (
                x[:, :height, :width]
                .reshape(len(x), height // 2, 2, width // 2, 2, -1)
                .max((2, 4))
            )
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = np.maximum(x @ params[name]["kernel"] + params[name]["bias"], 0)
    return x @ params["out"]["kernel"] + params["out"]["bias"]
