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

from fedjax_srp.parts.files import open_file, read_text
from fedjax_srp.results import atomic
from fedjax_srp.results.errors import DamagedError

_CHECKSUM = "checksum"


def jsonable(value: Any) -> Any:
    """Convert `value` to strict JSON, losslessly for plain settings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [jsonable(entry) for entry in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__") or isinstance(value, np.generic):
        return jsonable(np.asarray(value).tolist())
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{getattr(value, '__module__', '')}.{name}"
    return repr(value)


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, our value, their value) of the settings that differ in two records.

    The name of a setting inside of others is a dotted path.
    """
    for name in {**theirs, **ours}:
        value = ours.get(name)
        other = theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            for inner, *values in differences(value, other):
                yield f"{name}.{inner}", *values
        elif value != other:
            yield name, value, other


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
    try:
        text = read_text(path)
        value = json.loads(text)
        del value[_CHECKSUM]
        if _with_checksum(value) == text:
            return value
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DamagedError(f"{path.name} is not what was written")


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
