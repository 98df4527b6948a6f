"""Records of a run, segment by segment: joined in memory when they are asked for, appended to a log on disk.

Nothing that was recorded is written or copied again when more comes, so a run takes time in proportion to its length.
"""

from __future__ import annotations

import hashlib
import io
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
        last: the segment that was added last.
    """

    def __init__(self, segments: Iterable[Arrays] = ()) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}
        self.last: Arrays = {}
        for segment in segments:
            self.add(segment)

    def add(self, segment: Arrays) -> None:
        """Add what a segment recorded."""
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

    The seal of a snapshot has the `mark` that `append` returned: the length of the log then, and its checksum. Whatever
    stands behind the mark that was `read` was written by a run that was killed; the next `append` cuts it off.

    Args:
        folder: holds the copies.
    """

    def __init__(self, folder: Path):
        self._intact = self._copies = [folder / name for name in COPIES]
        self._digest = hashlib.sha256()
        self.size = 0

    def append(self, segment: Arrays) -> dict[str, Any]:
        """Write what a segment recorded behind the rest; return the mark.

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
                stored.append(copy, 0, self._intact[0].read_bytes()[: self.size])
            stored.append(copy, self.size, view)
        self._digest.update(view)
        self.size += len(view)
        self._intact = self._copies
        return {"bytes": self.size, "digest": self._digest.hexdigest()}

    def read(self, mark: Mapping[str, Any]) -> list[Arrays]:
        """Return what had been recorded at a mark, segment by segment; go on from there.

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
            if hashlib.sha256(content).hexdigest() == mark["digest"]:
                found[copy] = content
        if not found:
            raise stored.DamagedError(f"{' and '.join(COPIES)} are not what was written")
        self._intact, content = list(found), next(iter(found.values()))
        self._digest, self.size = hashlib.sha256(content), len(content)
        return list(_segments(content))


def _segments(content: bytes) -> Iterator[Arrays]:
    place = 0
    while place < len(content):
        start = place + _LENGTH
        place = start + int.from_bytes(content[place:start], "little")
        with np.load(io.BytesIO(content[start:place]), allow_pickle=False) as arrays:
            yield dict(arrays)
