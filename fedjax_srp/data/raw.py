"""A data set before it is partitioned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_srp._checks import check_integers


class RawArrays(NamedTuple):
    """A data set before it is partitioned."""

    x_train: np.ndarray  # (n_train, ...) uint8 pixels, or what the model takes
    y_train: np.ndarray  # (n_train,) integers
    x_test: np.ndarray
    y_test: np.ndarray
    users_train: np.ndarray | None = None  # (n_train,) whose example it is, for natural partitions
    users_test: np.ndarray | None = None
    num_classes: int | None = None  # None: the largest label + 1
    scale: np.ndarray | float | None = None  # None: from NORMALISATION, else 1/255 for uint8
    offset: np.ndarray | float | None = None


def keep_classes(raw: RawArrays, classes: Sequence[int]) -> RawArrays:
    """The examples of some classes, relabelled by their place in `classes`.

    Args:
        raw: all examples.
        classes: labels to keep; the first becomes 0.

    Raises:
        ValueError: if there are none, one comes twice, or one has no training examples.
    """
    chosen = np.asarray(check_integers("classes", classes, 0))
    if not chosen.size:
        raise ValueError("classes=[]: give the labels to keep, at least one integer, e.g. range(10)")
    values, counts = np.unique(chosen, return_counts=True)
    if counts.max() > 1:
        raise ValueError(f"classes: {values[np.argmax(counts)]} is listed twice; name every class once")
    present = np.unique(raw.y_train)
    missing = chosen[~np.isin(chosen, present)]
    if missing.size:
        raise ValueError(
            f"classes: {missing[0]} has no training examples; the data set has the classes {_ranges(present)}"
        )
    rows = {kind: np.isin(labels, chosen) for kind, labels in (("train", raw.y_train), ("test", raw.y_test))}
    order = np.argsort(chosen, kind="stable")

    def relabelled(labels: np.ndarray) -> np.ndarray:
        return order[np.searchsorted(values, labels)]

    def kept(users: np.ndarray | None, kind: str) -> np.ndarray | None:
        return None if users is None else users[rows[kind]]

    return raw._replace(
        x_train=raw.x_train[rows["train"]],
        y_train=relabelled(raw.y_train[rows["train"]]),
        x_test=raw.x_test[rows["test"]],
        y_test=relabelled(raw.y_test[rows["test"]]),
        users_train=kept(raw.users_train, "train"),
        users_test=kept(raw.users_test, "test"),
        num_classes=len(chosen),
    )


def _ranges(numbers: np.ndarray) -> str:
    """Ascending integers in words: 0..9, 12."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
