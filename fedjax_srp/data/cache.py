"""Arrays that took long to decode, kept as memory-mapped .npy files and trusted only while their checksums agree.

A cache is a folder with one .npy file an array and a manifest: the sha256 of every file, and names, sizes and times of
the files that the arrays were decoded from. It appears by one rename, complete; what a killed process leaves has
another name. Files are checked in full whenever they are read, at more than a gigabyte a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

FOLDER = ".fedjax_srp"
_MANIFEST = "manifest.json"
_FORMAT = 1  # of the arrays: to be raised when a `decode` returns other arrays for the same files
_DAY = 86_400.0  # seconds; an unfinished cache that is older belongs to nobody


def places(beside: Path, name: str) -> list[Path]:
    """Where a cache may lie: in the folder of the data, or in the user's own cache where that is read-only.

    Args:
        beside: the folder of the data.
        name: of the cache, may contain slashes.
    """
    own = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # never raises
    digest = hashlib.sha256(os.fsencode(beside.absolute())).hexdigest()[:16]
    return [beside / FOLDER / name, own / "fedjax_srp" / digest / name]


def cached(
    folders: Sequence[Path], origin: Iterable[Path], decode: Callable[[], Mapping[str, np.ndarray]]
) -> Mapping[str, np.ndarray]:
    """What `decode` returned the first time, from the first folder that has it.

    A cache of other files than `origin` is replaced, and so is one that does not agree with its checksums, with a
    warning: the disk is failing or something else writes there.

    Args:
        folders: where the cache may lie; it is written to the first that can be written to.
        origin: the files that `decode` reads.
        decode: -> name: array. Called if no folder has a good cache.

    Returns:
        The arrays, memory-mapped and read-only, or as decoded where no folder can be written to.
    """
    files = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(origin)]
    fingerprint = [_FORMAT, *files]
    for folder in folders:
        try:
            return _read(folder, fingerprint)
        except OSError:
            continue
        except _StaleError as error:
            if str(error):
                warnings.warn(f"{folder}: the cache is damaged ({error}); decoding the data again", stacklevel=2)
    arrays, reasons = decode(), []
    for folder in folders:
        with contextlib.suppress(OSError, _StaleError):
            return _read(folder, fingerprint)  # another process was faster
        try:
            _write(folder, fingerprint, arrays)
            return _read(folder, fingerprint)
        except (OSError, _StaleError) as error:  # read-only, full, or replaced by a cache of other files
            reasons.append(" ".join(str(error).split()))
    warnings.warn(
        f"cannot keep decoded arrays, so they are decoded at every start: {'; '.join(reasons)}; make one of "
        f"{' and '.join(str(folder.parent) for folder in folders)} writable",
        stacklevel=2,
    )
    return arrays


class _StaleError(Exception):
    """The folder holds a cache of other files, or a damaged one: then the message says how."""


def _read(folder: Path, fingerprint: list) -> dict[str, np.ndarray]:
    """The arrays of a good cache.

    Raises:
        OSError: there is none.
        _StaleError: it is of other files, or damaged.
    """
    text = (folder / _MANIFEST).read_bytes()
    try:
        manifest = json.loads(text)
        if manifest["origin"] != fingerprint:
            raise _StaleError
        arrays = {name: _checked(folder / f"{name}.npy", digest) for name, digest in manifest["sha256"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise _StaleError(" ".join(str(error).split())) from error
    return arrays


def _checked(path: Path, digest: str) -> np.ndarray:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes of sha256 {found[:12]}, not {digest[:12]}")
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _write(folder: Path, fingerprint: list, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts a complete cache in place of whatever the folder is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent, f"{folder.name}.incomplete-*")
    with incomplete(folder) as place:
        digests = {}
        for name, array in arrays.items():
            np.save(place / f"{name}.npy", array, allow_pickle=False)
            with (place / f"{name}.npy").open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        manifest = {"origin": fingerprint, "sha256": digests}
        (place / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        place.rename(folder)


@contextlib.contextmanager
def incomplete(path: Path) -> Iterator[Path]:
    """A new folder beside `path` to make it in, gone at the end unless it was renamed."""
    place = path.with_name(f"{path.name}.incomplete-{uuid.uuid4().hex}")
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def sweep(folder: Path, pattern: str) -> None:
    """Removes the folders of that name that have not been touched for a day: what killed processes left."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left)
