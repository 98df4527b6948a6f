"""`shift_features`: feature shift by rotated, brighter or darker images of clients or groups of clients."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np

from fedjax_srp.data.federated import FederatedData
from fedjax_srp.parts.description import records_arguments
from fedjax_srp.parts.part import Above, as_annotated

Turn = Literal[0, 90, 180, 270]
Factor = Annotated[float, Above(0)]


@records_arguments
def shift_features(
    data: FederatedData,
    rotations: tuple[Turn, ...] = (0, 90, 180, 270),
    brightness: tuple[Factor, ...] = (1.0,),
) -> FederatedData:
    """Rotate the training and test images of clients, and make them brighter or darker.

    Client i gets `rotations[i % len(rotations)]` and `brightness[i % len(brightness)]`,
    so each entry makes a group of clients, which has clients of all speeds under an
    ordered clock. Give as many entries as clients for a shift per client. Rotated MNIST
    of IFCA (Ghosh et al., 2020) has four groups, at 0, 90, 180 and 270 degrees.

    Args:
        data: images (h, w) or (h, w, channels), as from `load` or `from_arrays`; each
            must belong to one client.
        rotations: in degrees, counterclockwise; 90 and 270 require h = w.
        brightness: factors of the model's input, before `offset`. Integers are rounded
            and clipped to their type.

    Returns:
        The data, with new images.

    Raises:
        ValueError: examples that are not images, or not square for 90 and 270 degrees.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=5)
        >>> shift_features(data, rotations=(0, 180)).num_clients
        20
    """
    rotations = as_annotated("rotations", rotations, tuple[Turn, ...])
    brightness = as_annotated("brightness", brightness, tuple[Factor, ...])
    shape = data.example_shape
    if len(shape) not in (2, 3) or (shape[0] != shape[1] and {90, 270} & {*rotations}):
        raise ValueError(
            f"data: examples have shape {shape}; give images (h, w) or (h, w, channels), "
            "with h = w for 90 and 270"
        )
    if not rotations or not brightness:
        raise ValueError(
            f"rotations={rotations}, brightness={brightness}: give at least one of each, "
            "(0,) and (1.0,)"
        )
    x_train = x_test = np.array(data.x_train)
    is_one_pool = data.x_test is data.x_train  # of `holdout`
    if not is_one_pool:
        x_test = np.array(data.x_test)
    parts = [
        (x_train, data.train_indices, data.train_counts),
        (x_test, data.test_indices, data.test_counts),
    ]
    for x, indices, counts in parts:
        for client, (row, count) in enumerate(
            zip(np.asarray(indices), np.asarray(counts), strict=True)
        ):
            rows = row[:count]
            quarters = rotations[client % len(rotations)] // 90
            turned = np.rot90(x[rows], quarters, axes=(1, 2))
            x[rows] = _scale_pixels(turned, brightness[client % len(brightness)])
    train = test = jnp.asarray(x_train)
    if not is_one_pool:
        test = jnp.asarray(x_test)
    return dataclasses.replace(data, x_train=train, x_test=test)


def _scale_pixels(x: np.ndarray, factor: float) -> np.ndarray:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x * np.asarray(factor, x.dtype)
    limits = np.iinfo(x.dtype)
    return np.clip(np.rint(x * factor), limits.min, limits.max).astype(x.dtype)
