"""Records of a run, segment by segment: joined in memory on access, appended to a log on disk.

Old records are never copied or rewritten, so the time of a run is proportional to its length.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.parts.files import open_file
from fedjax_srp.results import atomic
from fedjax_srp.results.errors import DamagedError

Arrays = Mapping[
    str, np.ndarray
]  # flat, names are paths; the second axis is that of rounds or evaluations
COPIES = ("records.0", "records.1")  # of the log, in case one is damaged
_LENGTH = 8  # bytes before the records of a segment


class Records(Mapping[str, np.ndarray]):
    """Arrays that grow along their second axis.

    Attributes:
        last: the segment that was added last.
        start_time: (num_seeds,) simulated time before the first round.
    """

    def __init__(self, segments: Iterable[Arrays] = ()) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}
        self.last: Arrays = {}
        self.start_time = np.zeros(1)
        for segment in segments:
            self.add(segment)

    def add(self, segment: Arrays) -> None:
        """Add the records of a segment."""
        self.last = segment
        for name, array in segment.items():
            self._parts.setdefault(name, []).append(array)

    def elapsed(self) -> np.ndarray:
        """(num_seeds, R) simulated time at the end of each round, without communication."""
        steps = [self.start_time[:, None], self["compute_time"]]
        return np.cumsum(np.concatenate(steps, 1), 1, np.float64)[:, 1:]

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
    """Two copies of all records, in files that only grow.

    The seal of a snapshot has the mark that `append` returned: length and checksum of the log at that time. Records
    after the mark given to `read` are of a killed run; the next `append` truncates them.

    Args:
        folder: holds the copies.
    """

    def __init__(self, folder: Path):
        self._intact = self._copies = [folder / name for name in COPIES]
        self._digest = hashlib.sha256()
        self.size = 0

    def append(self, segment: Arrays) -> dict[str, Any]:
        """Append the records of a segment; return the mark.

        Raises:
            OSError: the disk is full; earlier records are intact.
        """
        frame = io.BytesIO()
        frame.write(bytes(_LENGTH))
        np.savez(frame, allow_pickle=False, **segment)
        view = frame.getbuffer()
        view[:_LENGTH] = (len(view) - _LENGTH).to_bytes(_LENGTH, "little")
        for copy in self._copies:
            if copy not in self._intact:
                atomic.append(copy, 0, self._intact[0].read_bytes()[: self.size])
            atomic.append(copy, self.size, view)
        self._digest.update(view)
        self.size += len(view)
        self._intact = self._copies
        return {"bytes": self.size, "digest": self._digest.hexdigest()}

    def read(self, mark: Mapping[str, Any]) -> list[Arrays]:
        """Return the records up to a mark, segment by segment, and continue from there.

        Raises:
            DamagedError: both copies are damaged.
        """
        found: dict[Path, bytes] = {}
        for copy in self._copies:
            try:
                with open_file(copy) as file:
                    content = file.read()[: mark["bytes"]]
            except OSError:
                continue
            if hashlib.sha256(content).hexdigest() == mark["digest"]:
                found[copy] = content
        if not found:
            raise DamagedError(f"{' and '.join(COPIES)} are not what was written")
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
