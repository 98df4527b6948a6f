"""Registry: things of one kind by name, those of the package and those that users add."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn, TypeVar

from fedjax_srp.parts.checks import ArgumentError, as_annotated, check_known

T = TypeVar("T")


class Registry(dict[str, T]):
    """Dict whose unknown names raise a ValueError of one line, with the nearest names.

    Args:
        kind: of its entries, in errors, such as "model".
        entries: of the package, which users cannot replace.
        adds: the public function that adds one, such as "srp.models.register"; "" if there is none.
        reserved: further names that users cannot take.

    Example:
        >>> colours = Registry("colour", {"red": 1, "blue": 2})
        >>> colours.add("green", 3)
        >>> colours.own()
        {'green': 3}
        >>> colours["rde"]
        Traceback (most recent call last):
        ValueError: unknown colour 'rde' (did you mean red?); choose from red, blue, green
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T],
        adds: str = "",
        reserved: Collection[str] = (),
    ):
        super().__init__(entries)
        self.kind = kind
        self._of_package = frozenset((*entries, *reserved))
        self.remedy = (
            f"{adds}, in a file for --load, adds one of your own" if adds else ""
        )

    def add(self, name: str, entry: T) -> None:
        """Add an entry of a user, or replace one that a user has added."""
        as_annotated("name", name, str)
        if name in self._of_package:
            problem = f"is a {self.kind} of the package"
            raise ArgumentError("name", name, problem, "choose another name")
        self[name] = entry

    def names(self) -> list[str]:
        """Return all names, those of the package first."""
        return list(self)

    def own(self) -> dict[str, T]:
        """Return the entries that users have added."""
        return {
            name: entry for name, entry in self.items() if name not in self._of_package
        }

    def check(self, name: object) -> None:
        """Raise a ValueError of one line for an unknown name."""
        check_known(self.kind, [name], self, f"; {self.remedy}" if self.remedy else "")

    def __missing__(self, name: str) -> NoReturn:
        self.check(name)
        raise AssertionError(name)  # `check` has raised
