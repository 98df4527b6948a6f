"""Dataclasses of data as pytrees, and rows of arrays by client id."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

DROPPED = ("options", "client_names", "class_names")  # fields that transformations drop


def register(cls: type[Any], *static: str) -> None:
    """Register a dataclass of data as a pytree.

    Args:
        cls: the dataclass. Transformations drop its fields `DROPPED`.
        *static: names of the fields that are not leaves.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    dropped = [name for name in names if name in DROPPED]
    leaves = [name for name in names if name not in (*static, *dropped)]
    jax.tree_util.register_dataclass(cls, leaves, list(static), drop_fields=dropped)


def take(array: jax.Array, ids: jax.Array) -> jax.Array:
    """Gather rows by ids that are not negative; an id past the end reads the last row.

    Args:
        array: (rows, ...).
        ids: (...) int32, those of a chunk's padding past the end.
    """
    return array.at[ids].get(mode="clip", wrap_negative_indices=False)
