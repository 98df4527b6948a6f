"""Convolutions that stay fast when every client has its own weights.

A vmap over clients with their own kernels turns XLA's convolution into a grouped one, and on a CPU
even the gradient of a plain convolution runs at a few GFLOP/s. The other strategies use matrix
products, forwards and backwards, batched or not: windows times matrix (im2col), the same for tiles
of outputs, and Winograd's minimal filtering.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array
from fedjax_srp.parts.checks import check_choice, check_integer
from fedjax_srp.xla.backend import platform

Strategy = Literal["auto", "patches", "tiles", "winograd", "xla"]
TILE = 2  # outputs of a tile of `tiles`, in both directions
NARROW = 16  # with at most so many outputs of a pixel, tiles of them make faster products
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)  # nodes of Winograd's polynomials, beside infinity
WINOGRAD_CHANNELS = 8  # with fewer, its transforms cost more than they save
WINOGRAD_SAVES = (
    2000  # products of a pair of channels, as many as transforms of kernels cost
)


def resolve(
    strategy: str,
    kernel_shape: Sequence[int] = (5, 5, 64, 64),
    out_shape: Sequence[int] = (10, 10, 10),
) -> str:
    """Return the strategy of "auto", others unchanged.

    Args:
        strategy: of `convolve`.
        kernel_shape: (height, width, c, n).
        out_shape: (batch, h, w) of the outputs.
    """
    check_choice("convolution", strategy, get_args(Strategy))
    height, width, channels, outputs = kernel_shape
    fits = max(height, width) <= len(POINTS)
    if strategy == "winograd" and not fits:
        raise ValueError(
            f"convolution='winograd' takes kernels up to {len(POINTS)}, "
            f"not {height} x {width}; use 'auto'"
        )
    if strategy != "auto":
        return strategy
    if platform() not in ("cpu", "gpu"):
        return "xla"
    if platform() == "gpu" or min(height, width) == 1:
        return "patches"
    saves = fits and saved_by_winograd(height, width, out_shape) >= WINOGRAD_SAVES
    if saves and channels >= WINOGRAD_CHANNELS:
        return "winograd"
    return "tiles" if outputs <= NARROW else "patches"


def saved_by_winograd(height: int, width: int, out_shape: Sequence[int]) -> int:
    """Products that Winograd's filtering saves for each pair of an input and an output channel."""
    batch, out_height, out_width = out_shape
    size = len(POINTS) + 1
    down = -(-out_height // (size + 1 - height))
    across = -(-out_width // (size + 1 - width))
    plain = height * width * out_height * out_width
    return batch * (plain - size**2 * down * across)


def check_images(model: str, shape: Sequence[int], smallest: int) -> None:
    """Raise a `ValueError` unless examples are images of at least the smallest size."""
    if len(shape) not in (2, 3) or min(shape[:2]) < smallest:
        raise ValueError(
            f"input_shape={shape}: {model} takes images (h, w) or (h, w, c) of at least "
            f"{smallest} x {smallest}; choose mlp, which takes any shape"
        )


def convolve(x: Array, kernel: Array, strategy: str = "auto", stride: int = 1) -> Array:
    """Convolution (cross-correlation) without padding.

    Args:
        x: (batch, h, w, c).
        kernel: (kernel height, kernel width, c, n).
        strategy: "patches", "tiles", "winograd", "xla", or "auto": the measured choice on CPUs and
            GPUs (`resolve`), "xla" elsewhere.
        stride: of the windows, in both directions; above 1, patches replace tiles and winograd.

    Returns:
        (batch, 1 + (h - kernel height) // stride, 1 + (w - kernel width) // stride, n).
    """
    out_height = 1 + (x.shape[1] - kernel.shape[0]) // stride
    out_width = 1 + (x.shape[2] - kernel.shape[1]) // stride
    strategy = resolve(strategy, kernel.shape, (x.shape[0], out_height, out_width))
    if strategy == "xla":
        dtype = jnp.result_type(x, kernel)  # as matrix products promote their operands
        return jax.lax.conv_general_dilated(
            x.astype(dtype),
            kernel.astype(dtype),
            window_strides=(stride, stride),
            padding="VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    if strategy == "winograd" and stride == 1:
        return _winograd(x, kernel)
    if strategy == "tiles" and stride == 1:
        return _in_tiles(x, kernel)
    windows = patches(x, kernel.shape[0], kernel.shape[1], stride)
    product = windows.reshape(-1, windows.shape[-1]) @ kernel.reshape(
        -1, kernel.shape[-1]
    )
    return product.reshape(*windows.shape[:-1], -1)


def patches(x: Array, height: int, width: int, stride: int = 1) -> Array:
    """Return all windows of a batch of images.

    (batch, h, w, c) -> (batch, h - height + 1, w - width + 1, height * width * c). The last axis
    has the order of a flattened kernel (height, width, c). Columns are gathered first, then rows,
    so that the gradient adds height + width slices instead of height * width and needs no scatter.
    A stride keeps every stride-th window of each row and column.
    """
    out_height = x.shape[1] - height + 1
    out_width = x.shape[2] - width + 1
    x = jnp.concatenate(
        [x[:, :, j : j + out_width : stride] for j in range(width)], axis=-1
    )
    return jnp.concatenate(
        [x[:, i : i + out_height : stride] for i in range(height)], axis=-1
    )


def _in_tiles(x: Array, kernel: Array) -> Array:
    """Convolve by windows that hold all inputs of a tile of outputs.

    A quarter of the windows of `patches`, each larger by a row and a column, and a matrix that is
    four times as wide, with the kernel at each place of the tile and zeros besides.
    """
    kernel_height, kernel_width, _, outputs = kernel.shape
    batch = x.shape[0]
    out_height = x.shape[1] - kernel_height + 1
    out_width = x.shape[2] - kernel_width + 1
    # numbers of tiles
    down = -(-out_height // TILE)
    across = -(-out_width // TILE)
    bottom = down * TILE - out_height
    right = across * TILE - out_width
    x = jnp.pad(x, ((0, 0), (0, bottom), (0, right), (0, 0)))
    windows = patches(x, kernel_height + TILE - 1, kernel_width + TILE - 1, TILE)
    places = range(TILE)
    shifted = [
        jnp.pad(kernel, ((i, TILE - 1 - i), (j, TILE - 1 - j), (0, 0), (0, 0)))
        for i in places
        for j in places
    ]
    size = windows.shape[-1]
    matrix = jnp.stack(shifted, axis=-2).reshape(size, -1)
    out = windows.reshape(-1, size) @ matrix
    out = out.reshape(batch, down, across, TILE, TILE, outputs)
    out = out.transpose(0, 1, 3, 2, 4, 5)
    out = out.reshape(batch, down * TILE, across * TILE, outputs)
    return out[:, :out_height, :out_width]


@functools.cache
def winograd_matrices(taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the matrices of F(m, taps), m = 7 - taps outputs of a filter from 6 products.

    Plain filtering takes m * taps. y = out ((filter g) * (inputs d)), with the elementwise product
    *, is y_j = sum_k d_(j+k) g_k for j < m: Toom-Cook's multiplication of polynomials, transposed
    (Lavin and Gray 2016, section 3; Blahut 2010, chapter 5).

    Returns:
        inputs (6, 6), filter (6, taps), out (m, 6), float64 and exact.
    """
    points = np.array(POINTS)
    size = len(POINTS) + 1
    outputs = size + 1 - taps
    inputs = np.zeros((size, size))
    filters = np.zeros((size, taps))
    out = np.zeros((outputs, size))
    for i, point in enumerate(points):
        others = np.delete(points, i)
        inputs[i, :-1] = np.atleast_1d(np.poly(others))[::-1]
        filters[i] = point ** np.arange(taps) / np.prod(point - others)
        out[:, i] = point ** np.arange(outputs)
    inputs[-1] = np.poly(points)[::-1]  # the point at infinity
    filters[-1, -1] = 1.0
    out[-1, -1] = 1.0
    return inputs, filters, out


def _winograd(x: Array, kernel: Array) -> Array:
    """Convolve in tiles of 6 x 6 inputs, with 2.8 (5 x 5) or 4 (3 x 3) times fewer products."""
    kernel_height, kernel_width, channels, width = kernel.shape
    rows_in, rows_filter, rows_out = winograd_matrices(kernel_height)
    cols_in, cols_filter, cols_out = winograd_matrices(kernel_width)
    # outputs and inputs of a tile
    tile_height, size = rows_out.shape
    tile_width, _ = cols_out.shape
    batch = x.shape[0]
    out_height = x.shape[1] - kernel_height + 1
    out_width = x.shape[2] - kernel_width + 1
    # numbers of tiles
    down = -(-out_height // tile_height)
    across = -(-out_width // tile_width)
    bottom = tile_height * (down + (size - 1) // tile_height) - x.shape[1]
    right = tile_width * (across + (size - 1) // tile_width) - x.shape[2]
    x = jnp.pad(x, ((0, 0), (0, bottom), (0, right), (0, 0)))

    def combine(matrix: np.ndarray, parts: Sequence[Array]) -> Array:
        """Return `matrix` times the vector of `parts`, along a new leading axis."""

        def product(row: Sequence[float]) -> Any:
            return sum(part * c for part, c in zip(parts, row, strict=True) if c)

        return jnp.stack([product(row) for row in matrix.tolist()])

    def matrix(a: np.ndarray, b: np.ndarray) -> Array:
        return jnp.asarray(np.kron(a, b), x.dtype)

    # Columns and rows are grouped by tile_width and tile_height; tile t reads groups t, t + 1, ...
    # without a stride.
    tiles = x.reshape(batch, x.shape[1], -1, tile_width, channels)
    starts = [divmod(i, tile_width) for i in range(size)]
    tiles = combine(
        cols_in, [tiles[:, :, group : group + across, i] for group, i in starts]
    )
    tiles = tiles.reshape(size, batch, -1, tile_height, across, channels)
    starts = [divmod(i, tile_height) for i in range(size)]
    tiles = combine(
        rows_in, [tiles[:, :, group : group + down, i] for group, i in starts]
    )
    tiles = tiles.reshape(size * size, batch * down * across, channels)
    filters = matrix(rows_filter, cols_filter) @ kernel.reshape(
        kernel_height * kernel_width, -1
    )
    products = tiles @ filters.reshape(size * size, channels, width)
    out = matrix(rows_out, cols_out) @ products.reshape(size * size, -1)
    out = out.reshape(tile_height, tile_width, batch, down, across, width)
    out = out.transpose(2, 3, 0, 4, 1, 5)
    out = out.reshape(batch, tile_height * down, tile_width * across, width)
    return out[:, :out_height, :out_width]


def max_pool(x: Array) -> Array:
    """Return the largest of each 2 x 2 block, (batch, h, w, c) -> (batch, h // 2, w // 2, c).

    An odd last row is dropped. Equal largest entries of a block share the gradient.
    """
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


class Convolution(nn.Module):
    """A convolution of images or series by `convolve`; examples without a channel axis get one.

    Attributes:
        channels: n, width of the output.
        kernel_size: (height, width) for images, (length,) for series.
        strategy: of `convolve`.
        param_dtype: of kernel and bias.
        padding: "VALID" for none, unlike flax's `nn.Conv`, whose default is "SAME": zeros around
            the example, so that it keeps its size; or the number of rows and columns of zeros on
            each side.
        stride: of the windows, in all directions.
        use_bias: add a bias.
    """

    channels: int
    kernel_size: tuple[int, int] | tuple[int] = (5, 5)
    strategy: str = "auto"
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Array] = nn.initializers.lecun_normal()
    padding: Literal["VALID", "SAME"] | int = "VALID"
    stride: int = 1
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, h, w) or (batch, h, w, c) -> (batch, h', w', channels); series have no w."""
        axes = len(self.kernel_size)
        stride = check_integer("stride", self.stride, 1)
        if x.ndim - 1 not in (axes, axes + 1) or axes not in (1, 2):
            raise ValueError(
                f"kernel_size={self.kernel_size} does not fit examples of shape {x.shape[1:]}; "
                "give (height, width) for images, (length,) for series"
            )
        if x.ndim - 1 == axes:
            x = x[..., None]
        zeros = self._zeros(x.shape[1:-1])
        if any(map(any, zeros)):
            x = jnp.pad(x, ((0, 0), *zeros, (0, 0)))
        if (np.array(x.shape[1:-1]) < self.kernel_size).any():
            raise ValueError(
                f"kernel_size={self.kernel_size} is larger than padded examples of shape "
                f"{x.shape[1:-1]}; give a smaller one, or padding='SAME'"
            )
        shape = (*self.kernel_size, x.shape[-1], self.channels)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        if axes == 2:
            out = convolve(x, kernel, self.strategy, stride)
        else:  # images of width 1
            out = convolve(x[:, :, None], kernel[:, None], self.strategy, stride)[:, :, 0]
        if not self.use_bias:
            return out
        bias = self.param(
            "bias", nn.initializers.zeros, (self.channels,), self.param_dtype
        )
        return out + jnp.broadcast_to(bias, out.shape)

    def _zeros(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        """Zeros before and after each axis of an example; "SAME" as in flax."""
        if self.padding == "VALID":
            return [(0, 0)] * len(shape)
        if self.padding != "SAME":
            zeros = check_integer("padding", self.padding, 0)
            return [(zeros, zeros)] * len(shape)
        strides = (self.stride,) * len(shape)
        return list(jax.lax.padtype_to_pads(shape, self.kernel_size, strides, "SAME"))
