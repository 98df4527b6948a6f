"""What a model takes from a data set."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shapes:
    """What a model takes from a data set, hashable."""

    example_shape: tuple[int, ...]
    num_classes: int
    offset: Any  # of its inputs: nested tuples, or None
    name: str = dataclasses.field(compare=False)  # for messages

    @classmethod
    def of(cls, dataset: Any, with_offset: bool) -> Shapes:
        """Those of a data set that has passed `check_dataset`; augmentation alone wants the offset."""
        offset = getattr(dataset, "offset", None) if with_offset else None
        name = getattr(dataset, "name", type(dataset).__name__)
        return cls(tuple(dataset.example_shape), dataset.num_classes, None if offset is None else _nested(offset), name)


def _nested(values: Any) -> Any:
    array = np.asarray(values)
    return array.item() if array.ndim == 0 else tuple(map(_nested, array))
