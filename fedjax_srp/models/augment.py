"""Augmentation of images in training."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, Key, member_of
from fedjax_srp.parts.checks import check_choice, is_key, short
from fedjax_srp.parts.part import AtLeast, field, part


def _as_fill(fill: Any) -> Any:
    """Finite numbers as nested tuples."""
    if (
        is_key(fill)
        or np.asarray(fill).dtype.kind not in "iuf"
        or not np.isfinite(fill).all()
    ):
        raise ValueError(
            f"fill={short(fill)} must be finite numbers; give one value, or one per channel"
        )
    return _as_tuples(fill)


def _as_tuples(values: Any) -> Any:
    """An array as nested tuples, which are hashable and so static."""
    array = np.asarray(values)
    return array.item() if array.ndim == 0 else tuple(map(_as_tuples, array))


@part
class CropAndFlip:
    """A random crop of each padded image, mirrored with probability 1/2, as in SRPFL's code.

    Each image is shifted by -padding, ..., padding rows and as many columns, all (2 * padding + 1)
    ** 2 equally likely. Called with a key and images (batch, h, w, c) or (batch, h, w) of floats,
    it returns images.

    Args:
        padding: pixels added on each side before cropping to the old size.
        fill: value of the added pixels in the model's input: a scalar, one per channel, or anything
            that broadcasts over an image. Black is 0 only before normalisation; afterwards it is
            -mean / std, `FederatedData.offset`.

    Example:
        >>> import dataclasses, jax, fedjax_srp as srp
        >>> plain = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> model = dataclasses.replace(plain, augment=srp.models.CropAndFlip(padding=1))
        >>> x = jax.random.normal(jax.random.key(0), (5, 8, 8))
        >>> params = model.init(jax.random.key(1))
        >>> bool((model.logits(params, x) == plain.logits(params, x)).all())
        True
    """

    padding: Annotated[int, AtLeast(0)] = 4
    fill: Any = field(converter=_as_fill, default=0.0)

    def __call__(self, key: Key, x: Array) -> Array:
        """(key, images) -> images."""
        if x.ndim not in (3, 4):
            raise ValueError(
                "CropAndFlip takes images (batch, h, w) or (batch, h, w, c), "
                f"not inputs of {x.shape}"
            )
        if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[1] < min(x.shape[2:]):
            raise ValueError(
                f"CropAndFlip takes images (batch, h, w, c), and inputs of {x.shape} have their channels first; move "
                "them with np.moveaxis(x, 1, -1) before from_arrays"
            )
        batch, height, width = x.shape[:3]
        key_shift, key_flip = jax.random.split(key)
        shift = jax.random.randint(
            key_shift, (2, batch, 1), -self.padding, self.padding + 1
        )
        flips = jax.random.bernoulli(key_flip, 0.5, (batch, 1))
        # Source of each pixel; mirrored images are read backwards.
        columns = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (batch, width))
        rows = jnp.arange(height, dtype=jnp.int32)[None] + shift[0]  # (batch, height)
        # (batch, width)
        columns = jnp.where(flips, width - 1 - columns, columns) + shift[1]
        images = jnp.arange(batch, dtype=jnp.int32)[:, None, None]
        rows = rows[:, :, None]
        columns = columns[:, None, :]
        # (batch, height, width), with an axis of length 1 for channels
        is_inside = _within(rows, height) & _within(columns, width)
        is_inside = is_inside.reshape(is_inside.shape + (1,) * (x.ndim - 3))
        shifted = x[
            images, jnp.clip(rows, 0, height - 1), jnp.clip(columns, 0, width - 1)
        ]
        fill = jnp.broadcast_to(jnp.asarray(self.fill, x.dtype), x.shape)
        return jnp.where(is_inside, shifted, fill)


def _within(index: Array, size: int) -> Array:
    return (index >= 0) & (index < size)


def check_dataset(dataset: Any) -> None:
    """Raise a `ValueError` unless a data set has the shapes that a model needs."""
    for name in ("example_shape", "num_classes"):
        if not hasattr(dataset, name):
            raise ValueError(
                f"dataset={short(dataset)} has no {name}; give srp.data.load(name, ...), "
                "srp.data.from_arrays(...), or add the attribute to your own class"
            )


AUGMENTATIONS = ("crop_flip",)


def augmentation(name: str, dataset: Any) -> CropAndFlip:
    """Return an augmentation of the papers by name, with the fill of a data set.

    Args:
        name: "crop_flip": `CropAndFlip` with padding 4, filled with black.
        dataset: gives `example_shape`, and black as `offset` if it has one.
    """
    check_choice("augment", name, AUGMENTATIONS)
    check_dataset(dataset)
    offset = member_of(dataset, "offset")
    return CropAndFlip(padding=4, fill=0.0 if offset is None else offset)
