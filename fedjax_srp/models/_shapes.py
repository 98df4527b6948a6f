"""What a model takes from a data set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Shapes(NamedTuple):
    """What a model takes from a data set, hashable."""

    name: str
    example_shape: tuple[int, ...]
    num_classes: int
    offset: Any  # of its inputs: nested tuples, or None

    @classmethod
    def of(cls, dataset: Any) -> Shapes:
        """Those of a data set that has passed `check_dataset`."""
        offset = getattr(dataset, "offset", None)
        name = getattr(dataset, "name", type(dataset).__name__)
        return cls(name, tuple(dataset.example_shape), dataset.num_classes, None if offset is None else _nested(offset))


def _nested(values: Any) -> Any:
    array = np.asarray(values)
    return array.item() if array.ndim == 0 else tuple(map(_nested, array))
