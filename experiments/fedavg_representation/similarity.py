"""Similarity of representations: linear CKA of layers, cosines of features."""

from __future__ import annotations

import jax
import numpy as np

from fedjax_srp.models import SplitModel, SplitParams


def activations(
    model: SplitModel, params: SplitParams, x: jax.Array
) -> dict[str, np.ndarray]:
    """Return the outputs of every layer but the last.

    Args:
        model: with any cut between representation and head.
        params: parameters of the model.
        x: (n, *input_shape) images.

    Returns:
        Layer -> (n, width) float64; the last entry has the features, the input of the output layer.
    """
    layers = params.representation | params.head
    outputs = {}
    names = model.layer_names
    for place, name in enumerate(names[:-1], 1):
        below = {layer: layers[layer] for layer in names[:place]}
        output = jax.jit(model.recut(names[place]).represent)(below, x)
        outputs[name] = np.asarray(output, np.float64).reshape(len(x), -1)
    return outputs


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019): ||Y' X||_F^2 / (||X' X||_F ||Y' Y||_F), X and Y centred.

    1 for outputs that are equal up to a rotation, one factor and a shift; nan where outputs do not vary.

    Args:
        x: (n, p) outputs of one layer for n inputs.
        y: (n, q) outputs of another for the same inputs.
    """
    x, y = x - x.mean(0), y - y.mean(0)
    if min(x.shape[1], y.shape[1]) < len(
        x
    ):  # (width, width) matrices are the smaller ones
        across, own = (
            np.linalg.norm(y.T @ x) ** 2,
            np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y),
        )
    else:  # ||Y' X||_F^2 = <X X', Y Y'>
        kernel_x, kernel_y = x @ x.T, y @ y.T
        across, own = (
            np.sum(kernel_x * kernel_y),
            np.linalg.norm(kernel_x) * np.linalg.norm(kernel_y),
        )
    return float(across / own) if own else float("nan")


def mean_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Mean absolute cosine of features, the j-th of one class with the j-th of the other (appendix C.2).

    Args:
        first: (classes, n, width) features of n images of each class.
        second: (classes, n, width), of other images, so that an image never meets itself.

    Returns:
        (classes, classes): entry (a, b) compares `first[a]` with `second[b]`; features of length 0 have cosine 0.
    """
    dots = np.abs(np.einsum("ajw,bjw->abj", first, second))
    lengths = (
        np.linalg.norm(first, axis=-1)[:, None] * np.linalg.norm(second, axis=-1)[None]
    )
    return np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0).mean(-1)
