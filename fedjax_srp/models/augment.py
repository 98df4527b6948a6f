"""Augmentation of images in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp._checks import check_choice, check_integer, is_key, short
from fedjax_srp.base import Array, Key
from fedjax_srp.record import recorded

Augment = Callable[[Key, Array], Array]


@recorded
def crop_and_flip(padding: int = 4, fill: Any = 0.0) -> Augment:
    """A random crop of each padded image, then a mirror image with probability 1/2: what the SRPFL authors' code does.

    Each image is shifted by -padding, ..., padding rows and as many columns, all (2 * padding + 1) ** 2 equally likely.

    Args:
        padding: pixels added on each side before cropping to the old size.
        fill: value of the added pixels as the model sees them: a scalar, one per channel, or anything that broadcasts
            over an image. Black is 0 only before normalisation; afterwards it is -mean / std, `FederatedData.offset`.

    Returns:
        `(key, images) -> images`, for `srp.models.augmented`; images (batch, h, w, c) or (batch, h, w) of floats.

    Raises:
        ValueError: a negative padding; when called, something other than images.
    """
    check_integer("padding", padding, 0)
    if is_key(fill) or np.asarray(fill).dtype.kind not in "iuf" or not np.isfinite(fill).all():
        raise ValueError(f"fill={short(fill)} must be of finite numbers; give one value, or one per channel")

    def augment(key: Key, x: Array) -> Array:
        if x.ndim not in (3, 4):
            raise ValueError(f"crop_and_flip takes images (batch, h, w) or (batch, h, w, c), not inputs of {x.shape}")
        batch, height, width = x.shape[:3]
        key_shift, key_flip = jax.random.split(key)
        shift = jax.random.randint(key_shift, (2, batch, 1), -padding, padding + 1)
        flips = jax.random.bernoulli(key_flip, 0.5, (batch, 1))
        # Where each pixel comes from; the image's other side is read backwards.
        columns = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (batch, width))
        rows = jnp.arange(height, dtype=jnp.int32)[None] + shift[0]  # (batch, height)
        columns = jnp.where(flips, width - 1 - columns, columns) + shift[1]  # (batch, width)
        inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]  # (batch, height, width)
        image = jnp.arange(batch, dtype=jnp.int32)[:, None, None]
        moved = x[image, jnp.clip(rows, 0, height - 1)[:, :, None], jnp.clip(columns, 0, width - 1)[:, None, :]]
        filling = jnp.broadcast_to(jnp.asarray(fill, x.dtype), x.shape)
        return jnp.where(inside.reshape(*inside.shape, *(1,) * (x.ndim - 3)), moved, filling)

    return augment


def _within(index: Array, size: int) -> Array:
    return (index >= 0) & (index < size)


def check_dataset(dataset: Any) -> None:
    """Raises a ValueError of one line unless models can be shaped for a data set."""
    for name in ("example_shape", "num_classes"):
        if not hasattr(dataset, name):
            raise ValueError(
                f"dataset={short(dataset)} has no {name}; give srp.data.load(name, ...), srp.data.from_arrays(...), "
                "or that attribute to a class of your own"
            )


AUGMENTATIONS = ("crop_flip",)


def augmentation(name: str, dataset: Any) -> Augment:
    """An augmentation by name, as the papers use it, filled for a data set.

    Args:
        name: "crop_flip": `crop_and_flip` with padding 4, filled with black.
        dataset: gives `example_shape`, and black as `offset` where it has one.

    Raises:
        ValueError: an unknown name, or examples that are no images.
    """
    check_choice("augment", name, AUGMENTATIONS)
    check_dataset(dataset)
    shape = tuple(dataset.example_shape)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"augment={name!r} takes images (h, w) or (h, w, c), not examples of shape {shape}; leave it out"
        )
    offset = getattr(dataset, "offset", None)
    return crop_and_flip(padding=4, fill=0.0 if offset is None else offset)
