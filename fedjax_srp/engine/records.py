"""What a run records, segment by segment: joined in memory when it is asked for, appended to a log on disk.

Nothing that was recorded is written or copied again when more comes, so a run takes time in proportion to its length.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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


class Log:
    """Two copies of all that was recorded, in files that only grow.

    A snapshot remembers the `mark` that `append` returned: how long the log was, and its checksum. What stands behind
    the mark from which a run goes on is of a run that was killed, and is cut off when more is appended.

    Args:
        folder: of the copies.
    """

    def __init__(self, folder: Path):
        self._copies = [folder / name for name in COPIES]
        self._intact: list[Path] = self._copies
        self._size, self._digest = 0, hashlib.sha256()

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
        for copy in self._copies:
            if copy not in self._intact:
                shutil.copyfile(self._intact[0], copy)
            with copy.open("r+b" if copy.exists() else "wb") as file:
                file.truncate(self._size)
                file.seek(self._size)
                file.write(view)
        self._intact = self._copies
        self._size += len(view)
        self._digest.update(view)
        return {"bytes": self._size, "digest": self._digest.hexdigest()}

    def read(self, mark: Mapping[str, Any]) -> list[Arrays]:
        """What had been recorded at a mark, segment by segment; the log goes on from there.

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
        self._intact, self._size, self._digest = list(found), len(content), hashlib.sha256(content)
        return list(_segments(content))


def _segments(content: bytes) -> Iterator[Arrays]:
    place = 0
    while place < len(content):
        length = int.from_bytes(content[place : place + _LENGTH], "little")
        place += _LENGTH
        with np.load(io.BytesIO(content[place : place + length]), allow_pickle=False) as arrays:
            yield dict(arrays)
        place += length
