"""Cases of a measurement, which workers take as they take units of runs."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedjax_srp.parts.checks import short
from fedjax_srp.results import json_files
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.locks import held

MEASUREMENT = "measurement.json"  # in the folder of a case


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of a function, with a folder for its result.

    Attributes:
        name: the values by which it differs from the others.
        id: hexadecimal, equal for equal cases.
        values: these values.
        record: name of the function and all of its arguments, as JSON.
        function: is called.
        arguments: of the function.
        folder: of the result.
        shared: folder of the last error.
    """

    name: str
    id: str
    values: Mapping[str, Any]
    record: Mapping[str, Any]
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    folder: Path
    shared: Path

    @property
    def names(self) -> list[str]:
        """Its name, as a unit has those of its runs."""
        return [self.name]

    @property
    def runs(self) -> list[Any]:
        """Runs of the package: none."""
        return []

    def num_rounds(self) -> int:
        """Return 1, its share of the progress bar."""
        return 1

    def is_finished(self) -> bool:
        """Return True if its result is in the folder."""
        return (self.folder / MEASUREMENT).exists() and bool(self.kept())

    def has_current_summary(self) -> bool:
        """Return True: a result needs no other files."""
        return True

    def kept(self) -> dict[str, Any]:
        """Return what `measure` has written: the record, `found` and `seconds`; nothing if it is of another case."""
        try:
            kept = json_files.read_json(self.folder / MEASUREMENT)
        except DamagedError as error:
            raise ValueError(
                f"{self.folder}: {error}; delete the folder to have it measured again"
            ) from None
        return kept if kept.get("record") == self.record else {}

    def measure(self) -> None:
        """Call the function and keep its result, unless another process did."""
        with held(self.folder, "out"):
            if self.is_finished():
                return
            begin = time.perf_counter()
            returned = self.function(**self.arguments)
            remedy = "return numbers, texts, and lists and tables of them"
            found = as_plain("result", returned, remedy)
            seconds = time.perf_counter() - begin
            kept = {"record": self.record, "found": found, "seconds": seconds}
            json_files.write_json(self.folder / MEASUREMENT, kept)


def as_plain(called: str, value: Any, remedy: str) -> Any:
    """Return a value, also one with NumPy's numbers and arrays, as strict JSON.

    Raises:
        ValueError: a part of it is no JSON.
    """
    try:
        json.dumps(value, default=lambda each: each.tolist())
    except (TypeError, AttributeError, ValueError):
        raise ValueError(f"{called}={short(value)} is not JSON; {remedy}") from None
    return jsonable(value)
