"""`RawArrays`: a data set before it is partitioned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from typing_extensions import override

from fedjax_srp.parts.checks import ArgumentError, as_annotated
from fedjax_srp.parts.part import AtLeast


class LoadError(ArgumentError):
    """A data set that cannot be read; `value` is the name or path that the user gave, `problem` ends the line."""

    @override
    def __str__(self) -> str:
        return f"{self.argument}={self.value!r}{self.problem}"


class RawArrays(NamedTuple):
    """A data set before it is partitioned."""

    x_train: np.ndarray  # (n_train, ...) uint8 pixels, or inputs of the model
    y_train: np.ndarray  # (n_train,) integers
    x_test: np.ndarray
    y_test: np.ndarray
    # (n_train,) user of each example, for the natural partition
    users_train: np.ndarray | None = None
    users_test: np.ndarray | None = None
    num_classes: int | None = None  # None: the largest label + 1
    # None: from NORMALISATION, or 1/255 for other uint8 inputs
    scale: np.ndarray | float | None = None
    offset: np.ndarray | float | None = None
    # texts: the name of user i, where users are 0, 1, ...
    user_names: np.ndarray | None = None
    # texts: what class i was called before labels were numbered
    class_names: tuple[str, ...] | None = None
    # False: there are no test examples, a share of the others is held out
    is_split: bool = True


def keep_classes(raw: RawArrays, classes: Sequence[int]) -> RawArrays:
    """Return the examples of some classes, relabelled by their index in `classes`."""
    chosen = np.asarray(
        as_annotated("classes", classes, tuple[Annotated[int, AtLeast(0)], ...])
    )
    present = np.unique(raw.y_train)
    values, counts = np.unique(chosen, return_counts=True)
    invalid = [*values[counts > 1], *np.setdiff1d(chosen, present)]
    if invalid or not chosen.size:
        problem = "no label is listed"
        if invalid:
            problem = f"{invalid[0]} is listed twice, or has no training examples"
        known = ", ".join(map(str, present))
        raise ValueError(
            f"classes: {problem}; give some of {known}, each once, e.g. range(10)"
        )
    is_train = np.isin(raw.y_train, chosen)
    is_test = np.isin(raw.y_test, chosen)
    order = np.argsort(chosen, kind="stable")
    class_names = None
    if raw.class_names is not None:
        class_names = tuple(raw.class_names[label] for label in chosen)
    return raw._replace(
        x_train=raw.x_train[is_train],
        y_train=order[np.searchsorted(values, raw.y_train[is_train])],
        x_test=raw.x_test[is_test],
        y_test=order[np.searchsorted(values, raw.y_test[is_test])],
        users_train=None if raw.users_train is None else raw.users_train[is_train],
        users_test=None if raw.users_test is None else raw.users_test[is_test],
        num_classes=len(chosen),
        class_names=class_names,
    )
