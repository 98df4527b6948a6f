"""Parts that the tests of parts make: with fields of every kind, and with checks of their own."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from fedjax_srp.parts.part import Above, AtLeast, AtMost, Below, Count, Leaf, Static, part


@part
class Inner:
    """Inner part."""

    rate: Annotated[float, Above(0), "give a rate, e.g. 0.1"] = 0.1
    kind: Literal["plain", "odd"] = "plain"


@part
class Outer:
    """Part with fields of every kind."""

    inner: Inner = Inner()
    mu: Annotated[float, AtLeast(0), Below(1)] = 0.5
    share: Static[float] = 0.25
    decay: float | None = None
    schedule: float | Callable[[Any], Any] = 1.0
    times: np.ndarray | None = None
    rates: tuple[float, ...] = ()
    named: dict[str, float] | None = None
    whatever: Leaf[Any] = None
    epochs: Annotated[int, AtLeast(0), AtMost(9)] = 1
    steps: int | None = None
    widths: tuple[Count, ...] = (3,)
    levels: Sequence[int] = ()
    flag: bool = False
    label: str = "outer"
    function: Callable[[float], float] | None = None
    anything: Any = None


def message_of(call):
    with pytest.raises(ValueError, match=r"\w") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


ORDER = []


@part
class First:
    rate: Annotated[float, Above(0)] = 1.0
    seen: Any = None

    def __post_init__(self):
        ORDER.append(("first", type(self.rate)))
        object.__setattr__(self, "seen", [1] if self.rate == 9 else "first")


@part
class Second(First):
    more: int = 1

    def __post_init__(self):
        super().__post_init__()
        ORDER.append(("second", self.seen))


@part
class Third(Second):
    """Inherits all fields and checks."""
