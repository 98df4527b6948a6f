"""Strict JSON: values, and files with a checksum of themselves."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.files import open_file, read_text
from fedjax_srp.results import atomic
from fedjax_srp.results.errors import reading

_CHECKSUM = "checksum"
# levels of tables and lists in each other: readers of strangers' files may recurse
_DEEPEST = 200
_MOST_DIGITS = 300


def jsonable(value: Any, depth: int = 0) -> Any:
    """Convert `value` to strict JSON, losslessly for plain settings.

    Raises:
        ValueError: it is nested too deeply.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth > _DEEPEST:
        raise ValueError(
            f"settings are nested in more than {_DEEPEST} levels: give flatter ones"
        )
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict(), depth)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [jsonable(entry, depth + 1) for entry in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__") or isinstance(value, np.generic):
        return jsonable(np.asarray(value).tolist())
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{getattr(value, '__module__', '')}.{name}"
    return repr(value)


def parse(text: str | bytes) -> Any:
    """Return the value of JSON.

    Raises:
        ValueError: it is malformed, or has a number that no float can hold.
    """
    return json.loads(text, parse_int=_parse_integer)


def _parse_integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def has_structure(value: Any, structure: Any) -> bool:
    """Return True if a JSON value has a structure, in which a checksum alone is no reason to trust.

    Args:
        value: what was read.
        structure: a type, (structure, structure) for one of these, [structure] for a list of it, or
            {name: structure} for an object with these members; a missing one is None.
    """
    if isinstance(structure, tuple):
        return any(has_structure(value, each) for each in structure)
    if isinstance(structure, dict):
        return isinstance(value, dict) and all(
            has_structure(value.get(name), inner) for name, inner in structure.items()
        )
    if isinstance(structure, list):
        return isinstance(value, list) and all(
            has_structure(each, structure[0]) for each in value
        )
    return isinstance(value, structure)


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, our value, their value) of the settings that differ in two records.

    The name of a setting inside of others is a dotted path, without control characters.
    """
    for name in {**theirs, **ours}:
        value = ours.get(name)
        other = theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            for inner, *values in differences(value, other):
                yield f"{printable(name)}.{inner}", *values
        elif value != other:
            yield printable(name), value, other


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write strict JSON with a checksum of itself, atomically."""
    atomic.replace({path: as_json(value)})


def as_json(value: Mapping[str, Any]) -> Callable[[Path], object]:
    """Return the writer of a file as `read_json` reads it, for `atomic.replace`."""
    return lambda path: path.write_text(_with_checksum(value), "utf-8", newline="\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_json`.

    Raises:
        DamagedError: the file is missing, or does not match its checksum.
    """
    with reading(path.name):
        text = read_text(path)
        value = parse(text)
        del value[_CHECKSUM]
        if _with_checksum(value) != text:
            raise ValueError(_CHECKSUM)
    return value


def has_checksum(path: Path) -> bool:
    """Return True if a file, even a damaged one, looks like one of `write_json`."""
    if not path.is_file():
        return False
    with open_file(path) as file:
        return f'"{_CHECKSUM}"'.encode() in file.read()


def _with_checksum(value: Mapping[str, Any]) -> str:
    value = jsonable(value)
    checksum = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return json.dumps({**value, _CHECKSUM: checksum}, indent=2, allow_nan=False) + "\n"
