"""Bounds of numbers, as metadata of annotations: `Annotated[float, AtLeast(0)]`."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound of a field; a string beside it in the annotation is the remedy in the error."""

    limit: float

    words: ClassVar[str]
    compare: ClassVar[Callable[[Any, Any], Any]]

    def holds(self, value: Any) -> Any:
        """Return True for a number, or for each entry of an array, within the bound."""
        return type(self).compare(value, self.limit)

    def __str__(self) -> str:
        return f"{self.words} {self.limit}"


class AtLeast(Bound):
    """Lower bound of a field, `Annotated[float, AtLeast(0)]`; a string beside it is the remedy in the error."""

    words = "at least"
    compare = operator.ge


class AtMost(Bound):
    """Upper bound, see `AtLeast`."""

    words = "at most"
    compare = operator.le


class Above(Bound):
    """Exclusive lower bound, see `AtLeast`."""

    words = "above"
    compare = operator.gt

    def __str__(self) -> str:
        return "positive" if self.limit == 0 else super().__str__()


class Below(Bound):
    """Exclusive upper bound, see `AtLeast`."""

    words = "below"
    compare = operator.lt


@dataclasses.dataclass(frozen=True)
class Axes:
    """Most axes of an array in a field of numbers, 1 without it."""

    most: int
