"""What a run records, segment by segment: joined in memory when it is asked for, appended to a log on disk.

Nothing that was recorded is written or copied again when more comes, so a run takes time in proportion to its length.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp import stored

Arrays = Mapping[str, np.ndarray]  # flat, names are paths; the second axis is that of rounds or evaluations
COPIES = ("records.0", "records.1")  # of the log, so that a damaged one has another beside it
_LENGTH = 8  # bytes in front of what one segment recorded


class Records(Mapping[str, np.ndarray]):
    """Arrays that grow along their second axis.

    Attributes:
        last: what was added last.
    """

    def __init__(self, segments: Iterable[Arrays] = ()) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}
        self.last: Arrays = {}
        for segment in segments:
            self.add(segment)

    def add(self, segment: Arrays) -> None:
        """Adds what a segment recorded."""
        self.last = segment
        for name, array in segment.items():
            self._parts.setdefault(name, []).append(array)

    def __getitem__(self, name: str) -> np.ndarray:
        parts = self._parts[name]
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts, 1)]
        return parts[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class Cursor(NamedTuple):
    """Where a log goes on."""

    intact: list[Path]  # the copies that hold all that stands in front of it
    size: int  # bytes in front of it
    digest: Any  # of these, a hash of hashlib


class Log:
    """Two copies of all that was recorded, in files that only grow.

    A snapshot remembers the `mark` that `append` returned: how long the log was, and its checksum. What stands behind
    the mark from which a run goes on is of a run that was killed, and is cut off when more is appended.

    Args:
        folder: of the copies.
    """

    def __init__(self, folder: Path):
        self._copies = [folder / name for name in COPIES]
        self._cursor = Cursor(self._copies, 0, hashlib.sha256())

    @property
    def begins(self) -> bool:
        """Whether what is appended next comes first: nothing that the files hold belongs to this run."""
        return self._cursor.size == 0

    def go_on(self, cursor: Cursor) -> None:
        """Appends from there on, where `read` came to."""
        self._cursor = cursor

    def append(self, segment: Arrays) -> dict[str, Any]:
        """Writes what a segment recorded behind the rest; returns the mark.

        Raises:
            OSError: the disk is full; what was written before is intact.
        """
        frame = io.BytesIO()
        frame.write(bytes(_LENGTH))
        np.savez(frame, allow_pickle=False, **segment)
        view = frame.getbuffer()
        view[:_LENGTH] = (len(view) - _LENGTH).to_bytes(_LENGTH, "little")
        intact, size, digest = self._cursor
        for copy in self._copies:
            if copy not in intact:
                shutil.copyfile(intact[0], copy)
            with copy.open("r+b" if copy.exists() else "wb") as file:
                file.truncate(size)
                file.seek(size)
                file.write(view)
        digest.update(view)
        self._cursor = Cursor(self._copies, size + len(view), digest)
        return {"bytes": self._cursor.size, "digest": digest.hexdigest()}

    def read(self, mark: Mapping[str, Any]) -> tuple[list[Arrays], Cursor]:
        """What had been recorded at a mark, segment by segment, and the place behind it, for `go_on`.

        Raises:
            DamagedError: neither copy is what was written.
        """
        found: dict[Path, bytes] = {}
        for copy in self._copies:
            try:
                with copy.open("rb") as file:
                    content = file.read(mark["bytes"])
            except OSError:
                continue
            if len(content) == mark["bytes"] and hashlib.sha256(content).hexdigest() == mark["digest"]:
                found[copy] = content
        if not found:
            raise stored.DamagedError(f"{' and '.join(COPIES)} are not what was written")
        content = next(iter(found.values()))
        return list(_segments(content)), Cursor(list(found), len(content), hashlib.sha256(content))


def _segments(content: bytes) -> Iterator[Arrays]:
    place = 0
    while place < len(content):
        length = int.from_bytes(content[place : place + _LENGTH], "little")
        place += _LENGTH
        with np.load(io.BytesIO(content[place : place + length]), allow_pickle=False) as arrays:
            yield dict(arrays)
        place += length
