"""Storage on disk: folders sealed with checksums, atomic replacement of files, locks on folders.

Checkpoints, saved states and run folders share one mechanism: a seal, a JSON file written last, with facts, size and
SHA-256 of the sealed files, and a checksum of itself. A folder without a seal is unfinished, a wrong seal means damage.

Orbax writes the arrays, also those of several processes. It does not detect flipped bits or truncated files, and has
its own errors for a full disk: hence the seals, the atomic replacement and the errors of one line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_srp.base import PyTree

if TYPE_CHECKING:
    import pandas as pd

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

SEAL, LOCK, _ARRAYS, _CHECKSUM = "contents.json", ".fedjax_srp.lock", "arrays", "checksum"
_FULL = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large",
}
_FORMULA = re.compile(r"'*(?![+-]?[\d.]+(e[+-]?\d+)?$)[=+@\t\r-]")  # but no number
_PATTERN = re.compile(
    r"[*?[\\]" if os.sep == "/" else r"\["
)  # in a path, to orbax, which then drops the arrays
_MAKE_ROOM = "what was written before is intact; make room and run it again"
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK if hasattr(os, "O_NOFOLLOW") else 0


class DamagedError(ValueError):
    """Damaged file; the message names it and the damage."""


class FolderLockedError(ValueError):
    """Another process holds a folder."""


def write(
    folder: Path, arrays: Mapping[str, Any], facts: Mapping[str, Any], alone: bool = False
) -> None:
    """Write a sealed folder of arrays atomically; an existing one is replaced.

    Several processes write together, each its shards of the arrays, unless `alone` is set.

    Raises:
        OSError: the disk is full; existing files are intact.
        ValueError: the folder exists and was not written by `write`.
    """
    check_not_foreign(folder)
    token = np.int32(
        secrets.randbits(31)
    )  # random: threads of a failed call may still write; safe from planted links
    if not alone and jax.process_count() > 1:
        token = multihost_utils.broadcast_one_to_all(token)
    staging = folder.with_name(f".{folder.name}.{int(token):08x}.writing")
    first = alone or jax.process_index() == 0
    real = {
        name: leaf for name, leaf in arrays.items() if np.size(leaf)
    }  # orbax refuses empty arrays
    try:
        if first:
            staging.mkdir()
        _wait(alone)
        if real:
            with _checkpointer(staging, alone) as (checkpointer, path):
                checkpointer.save(path, real)
        if first:
            shapes = {
                name: [list(np.shape(leaf)), str(leaf.dtype)]
                for name, leaf in arrays.items()
            }
            files = digests(
                staging, (path for path in staging.rglob("*") if path.is_file())
            )
            as_json({"files": files, "shapes": shapes, "facts": facts})(staging / SEAL)
            remove(folder)
            staging.rename(folder)
        _wait(alone)
    except Exception as error:  # tensorstore has its own types of system errors
        shutil.rmtree(staging, ignore_errors=True)
        raise as_full_disk(error, folder) or error from None


def read(
    folder: Path, like: Mapping[str, Any] | None = None, alone: bool = False
) -> dict[str, Any]:
    """Return the arrays of a sealed folder, after verifying every byte.

    Args:
        folder: written by `write`.
        like: name -> array with the devices and sharding to restore to; others become NumPy arrays.
        alone: only this process reads.

    Raises:
        DamagedError: a file is missing or damaged.
    """
    sealed, like = read_json(folder / SEAL), dict(like or {})
    check(folder, sealed["files"])
    others = {name: of for name, of in sealed["shapes"].items() if name not in like}
    found = {
        name: np.zeros(shape, jnp.dtype(kind)) for name, (shape, kind) in others.items()
    } | like
    real = {name: leaf for name, leaf in found.items() if np.size(leaf)}
    if not real:
        return found
    import orbax.checkpoint as ocp

    target = real | jax.tree.map(
        ocp.utils.to_shape_dtype_struct,
        {name: real[name] for name in like if name in real},
    )
    with _checkpointer(folder, alone) as (checkpointer, path):
        return found | checkpointer.restore(path, args=ocp.args.StandardRestore(target))


def digests(folder: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Return file name within a folder -> size and SHA-256, for a seal."""
    return {path.relative_to(folder).as_posix(): _digest(path) for path in sorted(files)}


def check(folder: Path, expected: Mapping[str, Any]) -> None:
    """Check the files of a folder against the `digests` in its seal."""
    for name, digest in expected.items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if found != digest:
            raise DamagedError(f"{name} is not what was written")


def _digest(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


@contextlib.contextmanager
def _checkpointer(folder: Path, alone: bool) -> Iterator[tuple[Any, Path]]:
    """Give a checkpointer, and its path in a folder; by a link if orbax would take the folder's for a pattern."""
    import orbax.checkpoint as ocp

    index = jax.process_index() if alone else 0
    processes = {index} if alone and jax.process_count() > 1 else None
    options = ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes=processes
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    logging.getLogger("absl").addFilter(_is_not_of_orbax)
    with contextlib.ExitStack() as stack:
        if _PATTERN.search(os.fspath(path := folder.absolute())):
            temporary = tempfile.TemporaryDirectory(
                dir="/tmp" if _PATTERN.search(tempfile.gettempdir()) else None
            )
            path = Path(stack.enter_context(temporary), "link")
            path.symlink_to(folder.absolute())
        yield (
            stack.enter_context(
                ocp.Checkpointer(handler, multiprocessing_options=options)
            ),
            path / _ARRAYS,
        )


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Return False for orbax's logs: it raises the same errors, and each of its threads logs a traceback."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _wait(alone: bool) -> None:
    if not alone and jax.process_count() > 1:
        multihost_utils.sync_global_devices("held folder")


def named(tree: PyTree) -> dict[str, Any]:
    """Return path, "params/dense/kernel" -> leaf of a tree; a NamedTuple and a dict of its fields have equal paths.

    Raises:
        ValueError: two leaves have the same path.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in found:
            raise ValueError(
                f"two arrays of a state are called {name!r}: rename one, names without a slash are safe"
            )
        found[name] = leaf
    return found


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write strict JSON with a checksum of itself, atomically."""
    replace({path: as_json(value)})


def as_json(value: Mapping[str, Any]) -> Callable[[Path], object]:
    """Return the writer of a file as `read_json` reads it, for `replace`."""
    return lambda path: path.write_text(_sealed(value), "utf-8", newline="\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_json`; `SEAL` of a folder of arrays has its `files`, `shapes` and `facts`."""
    try:
        text = path.read_bytes().decode()
        found = json.loads(text)
        del found[_CHECKSUM]
        if _sealed(found) == text:
            return found
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DamagedError(f"{path.name} is not what was written")


def has_checksum(path: Path) -> bool:
    """Return True if a file, even a damaged one, looks like one of `write_json`."""
    return path.is_file() and f'"{_CHECKSUM}"'.encode() in path.read_bytes()


def _sealed(value: Mapping[str, Any]) -> str:
    value = jsonable(value)
    checksum = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return json.dumps({**value, _CHECKSUM: checksum}, indent=2, allow_nan=False) + "\n"


def replace(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files atomically, all into temporary folders beside them first; links are replaced, not their targets.

    Args:
        files: path -> function that writes the file to a given path.

    Raises:
        OSError: the disk is full, a path is a folder, or its folder is missing; existing files are intact.
    """
    temporaries: dict[Path, Path] = {}
    with contextlib.ExitStack() as stack:
        try:
            for path, write_to in files.items():
                if path.is_dir() and not path.is_symlink():  # before any file is replaced
                    raise IsADirectoryError(
                        errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)
                    )
                folder = tempfile.TemporaryDirectory(
                    ".writing", ".", path.parent.resolve(strict=True)
                )
                temporaries[path] = Path(stack.enter_context(folder), path.name)
                write_to(temporaries[path])
            for path, temporary in temporaries.items():
                temporary.replace(path)
        except Exception as error:
            raise as_full_disk(error, next(iter(files)).parent) or error from None


def as_csv(frame: pd.DataFrame) -> Callable[[Path], object]:
    """Return the writer of a table, for `replace`; `as_cell` escapes its strings."""
    frame = frame.rename(columns=as_cell)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(as_cell)
    return lambda path: frame.to_csv(path, index=False, lineterminator="\n")


def as_cell(value: Any) -> Any:
    """Return a cell: formulas get an apostrophe, carriage returns, which csv does not quote, become line feeds."""
    return (
        (f"'{value}" if _FORMULA.match(value) else value).replace("\r", "\n")
        if isinstance(value, str)
        else value
    )


def append(path: Path, after: int, data: bytes | memoryview) -> None:
    """Truncate a plain file, created if missing, to its first `after` bytes and append data."""
    with os.fdopen(_open(path), "r+b") as file:
        file.seek(file.truncate(after))
        file.write(data)


def _open(path: Path) -> int:
    """Open a plain file for reading and writing, created if missing; refuse links and pipes, which redirect writers."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and found.st_nlink < 2:
            return file
        os.close(file)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    raise ValueError(
        f"{str(path)!r} is a link or no plain file: remove it, or give another folder"
    )


def jsonable(value: Any) -> Any:
    """Convert `value` to strict JSON, losslessly for plain settings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, list | tuple | set | frozenset):
        return [
            jsonable(v)
            for v in (
                sorted(value, key=str) if isinstance(value, set | frozenset) else value
            )
        ]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__") or isinstance(value, np.generic):
        return jsonable(np.asarray(value).tolist())
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)


def is_foreign(folder: Path) -> bool:
    """Return True if a path exists and is neither a link nor a sealed folder of arrays, even a damaged one."""
    is_sealed = has_checksum(folder / SEAL) or any(
        (folder / _ARRAYS).glob("*ocdbt*")
    )  # files of orbax
    return folder.exists() and not (folder.is_symlink() or is_sealed)


def check_not_foreign(folder: Path) -> None:
    """Raise a ValueError of one line if `is_foreign`."""
    if is_foreign(folder):
        raise ValueError(
            f"{str(folder)!r} was not written by fedjax_srp: rename it, or give another folder"
        )


def remove(folder: Path) -> None:
    """Remove a folder, renamed first so that it disappears at once; or a link, but not its target."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        gone = folder.rename(
            folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.gone")
        )
        shutil.rmtree(gone, ignore_errors=True)


def clear(folder: Path) -> None:
    """Remove leftovers of killed `write`, `replace` and `remove` calls in a folder."""
    for leftover in (*folder.glob(".*.writing"), *folder.glob(".*.gone")):
        shutil.rmtree(leftover, ignore_errors=True)


def as_full_disk(error: BaseException, path: Path | None) -> OSError | None:
    """Return an error of one line if `error`, of any library, means a full disk; else None."""
    if isinstance(error, OSError) and _MAKE_ROOM in str(error):
        return error
    known = next(
        (
            no
            for no, text in _FULL.items()
            if getattr(error, "errno", 0) == no or text in str(error)
        ),
        None,
    )
    where = "" if path is None else f": {str(path)!r}"
    return (
        None if known is None else OSError(known, f"{_FULL[known]}{where}; {_MAKE_ROOM}")
    )


def writable(path: str | os.PathLike, argument: str = "out") -> Path:
    """Return the folder, created if missing; raise a ValueError of one line if it is not writable."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        reason = (
            "is a file"
            if isinstance(error, FileExistsError)
            else getattr(error, "strerror", None) or error
        )
        raise ValueError(
            f"{argument}={str(folder)!r}: {reason}; give a folder that can be written to"
        ) from None
    return folder


@contextlib.contextmanager
def held(folder: Path, argument: str) -> Iterator[None]:
    """Lock a folder against other processes; the system releases the lock when this process ends.

    Args:
        folder: created if missing.
        argument: name of the caller's argument for the folder.

    Raises:
        ValueError: the folder cannot be created, or another process holds it (`FolderLockedError`).
    """
    refusal, lock = "", None
    if jax.process_index() == 0:
        writable(folder, argument)
        try:
            lock = _lock(folder / LOCK)
        except ValueError as error:
            refusal = f"{argument}={str(folder)!r}: {error}"
    try:
        if jax.process_count() > 1 and multihost_utils.broadcast_one_to_all(
            np.int32(bool(refusal))
        ):
            refusal = (
                refusal or f"{argument}={str(folder)!r}: another process is running here"
            )
        if refusal:
            raise FolderLockedError(refusal)
        yield
    finally:
        if lock is not None:
            (folder / LOCK).unlink(missing_ok=True)  # still locked
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Return a file descriptor that holds the lock; None, with a warning, on systems without locks."""
    if fcntl is None:
        print(
            f"{path.parent}: no locks on this system; run one process at a time in it",
            file=sys.stderr,
        )
        return None
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = (
                os.read(file, 200).decode(errors="replace").strip() or "another process"
            )
            os.close(file)
            raise FolderLockedError(
                f"{holder} is running here; wait for it, or give another folder"
            ) from None
        except OSError as error:
            os.close(file)
            print(
                f"{path.parent}: no locks here ({error.strerror}); run one process at a time in it",
                file=sys.stderr,
            )
            return None
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            os.ftruncate(file, 0)
            with contextlib.suppress(
                OSError
            ):  # on a full disk the lock has no name, but works
                os.write(
                    file, f"process {os.getpid()} on {socket.gethostname()}".encode()
                )
            return file
        os.close(file)  # the last holder has removed this file meanwhile
