"""Storage on disk: folders sealed with checksums, atomic replacement of files, locks on folders.

Checkpoints, saved states and run folders share one mechanism: a seal, a JSON file written last, with facts, size and
SHA-256 of the sealed files, and a checksum of itself. A folder without a seal is unfinished, a wrong seal means damage.

Orbax writes the arrays, also those of several processes. It does not detect flipped bits or truncated files, and has
its own errors for a full disk: hence the seals, the atomic replacement and the errors of one line.

The files of a result belong together, and no system replaces several files at once. So a new result is complete in a
subfolder `NEXT` before its files replace the others one by one, and readers look there first (`current`): at every
moment they find the old result or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
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
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_srp.base import PyTree
from fedjax_srp.parts.files import NO_WAIT, machine_memory, open_file, read_text

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
_INTACT = "what was written before is intact"
_TENSORSTORE = re.compile(
    r"os_error_code='(\d+)'"
)  # in its errors, which are ValueErrors
_NO_LINK = os.O_NOFOLLOW | NO_WAIT if hasattr(os, "O_NOFOLLOW") else 0
# subfolder of a result that is complete, until all its files have replaced those of the folder
NEXT = ".fedjax_srp.next"
_held_here: set[tuple[int, int]] = (
    set()
)  # device and inode of the locks that this process holds


class DamagedError(ValueError):
    """Damaged file; the message names it and the damage."""


class StorageError(OSError):
    """Error of the system; `strerror` is one line with the folder, and says what is intact."""


class FolderLockedError(ValueError):
    """A folder is held.

    Attributes:
        by_this_process: waiting for another process is of no use.
    """

    def __init__(self, message: str, by_this_process: bool = False):
        super().__init__(message)
        self.by_this_process = by_this_process


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
            to_disk(staging)
            remove(folder)
            staging.rename(folder)
            sync(folder.parent)
        _wait(alone)
    except Exception as error:  # tensorstore has its own types of system errors
        shutil.rmtree(staging, ignore_errors=True)
        raise as_system_error(error, folder) or error from None


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
    try:
        check(folder, sealed["files"])
        others = {name: of for name, of in sealed["shapes"].items() if name not in like}
        needed = sum(
            math.prod(shape) * jnp.dtype(kind).itemsize for shape, kind in others.values()
        )
        if needed > machine_memory():
            raise DamagedError(
                f"{SEAL} lists arrays of {needed} bytes, more than this machine's memory"
            )
        found = {
            name: np.zeros(shape, jnp.dtype(kind))
            for name, (shape, kind) in others.items()
        } | like
    except DamagedError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # a checksum is no secret
        raise DamagedError(f"{SEAL} is not that of arrays") from None
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
    found = {}
    for path in sorted(files):
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = _digest(file)
    return found


def check(folder: Path, expected: Mapping[str, Any]) -> None:
    """Check the files of a folder against the `digests` in its seal."""
    for name, digest in expected.items():
        shown = name if name.isprintable() else repr(name)
        if (
            ".." in PurePosixPath(name).parts
            or PurePosixPath(name).is_absolute()
            or "\0" in name
        ):
            raise DamagedError(f"{shown} is not a file of this folder")
        try:
            with open_file(folder / name) as file:
                is_intact = (
                    os.fstat(file.fileno()).st_size == digest[0]
                    and _digest(file) == digest
                )
        except OSError as error:
            raise DamagedError(f"{shown}: {error.strerror}") from None
        if not is_intact:
            raise DamagedError(f"{shown} is not what was written")


def read_sealed(path: Path, digest: Any) -> bytes:
    """Return the content of a file, after comparing it with its entry in `digests`.

    Raises:
        DamagedError: the file is missing or damaged.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(size) if size == digest[0] else b""
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from None
    if [len(content), hashlib.sha256(content).hexdigest()] != digest:
        raise DamagedError(f"{path.name} is not what was written")
    return content


def _digest(file: io.BufferedReader) -> list[Any]:
    return [
        os.fstat(file.fileno()).st_size,
        hashlib.file_digest(file, "sha256").hexdigest(),
    ]


@contextlib.contextmanager
def _checkpointer(folder: Path, alone: bool) -> Iterator[tuple[Any, Path]]:
    """Give a checkpointer, and its path in a folder; by a link if orbax would not find the folder."""
    import orbax.checkpoint as ocp

    index = jax.process_index() if alone else 0
    processes = {index} if alone and jax.process_count() > 1 else None
    options = ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes=processes
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    logging.getLogger("absl").addFilter(_is_not_of_orbax)
    with contextlib.ExitStack() as stack:
        if not _is_for_orbax(path := folder.absolute()):
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


def _is_for_orbax(path: Path) -> bool:
    """Return False for paths that orbax takes for patterns, or that are not UTF-8."""
    try:
        return _PATTERN.search(os.fspath(path)) is None and bool(
            os.fspath(path).encode("utf-8")
        )
    except UnicodeEncodeError:
        return False


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
        text = read_text(path)
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
    if not path.is_file():
        return False
    with open_file(path) as file:
        return f'"{_CHECKSUM}"'.encode() in file.read()


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
                sync(temporaries[path])
            for path, temporary in temporaries.items():
                temporary.replace(path)
            for folder in {path.parent for path in files}:
                sync(folder)
        except Exception as error:
            raise as_system_error(error, next(iter(files)).parent) or error from None


def current(folder: Path, name: str) -> Path:
    """Return the path of a file or subfolder of the result in a folder."""
    newer = folder / NEXT
    return (
        newer / name
        if (newer / name).exists() and not newer.is_symlink()
        else folder / name
    )


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Give an empty folder for the files of a new result, complete at the end of the block; then call `settle`.

    The caller holds the folder, and has called `settle`, since another process may have been killed before it did.

    Raises:
        OSError: a file cannot be written; the result in the folder is intact.
    """
    staging = folder
    try:
        folder = folder.resolve(strict=True)
        with tempfile.TemporaryDirectory(
            ".writing", ".", folder, ignore_cleanup_errors=True
        ) as temporary:
            staging = Path(temporary, "result")
            staging.mkdir()
            yield staging
            to_disk(staging)
            staging.rename(folder / NEXT)
            sync(folder)
    except StorageError as error:  # names a folder that is gone
        raise StorageError(
            error.errno, str(error.strerror).replace(str(staging), str(folder))
        ) from None
    except Exception as error:
        raise as_system_error(error, folder) or error from None


def settle(folder: Path, names: Iterable[str]) -> None:
    """Let the files and subfolders of the result in `NEXT` replace those of the folder, in this order.

    Raises:
        OSError: a file cannot be replaced; `current` finds all files of the new result.
    """
    staging = folder / NEXT
    if (
        staging.is_symlink() or not staging.is_dir()
    ):  # a link is of a stranger, who may want the files it leads to
        return
    try:
        for name in names:
            if (staging / name).exists():
                if (staging / name).is_dir():
                    remove(folder / name)
                (staging / name).replace(folder / name)
        sync(folder)
        staging.rmdir()
    except OSError as error:
        reason = f"{error.strerror}; the new result is complete in {str(staging)!r}, and is the one that is read"
        raise StorageError(
            error.errno, f"{str(folder)!r}: {reason}; save it again"
        ) from None


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, would survive a loss of power."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
        ):  # of file systems that cannot
            raise
    finally:
        os.close(descriptor)


def to_disk(folder: Path) -> None:
    """Call `sync` on a folder and all that is in it."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


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
        file.flush()
        os.fsync(file.fileno())


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


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, our value, their value) of the settings that differ in two records; a name is a dotted path."""
    for name in {**theirs, **ours}:
        value, other = ours.get(name), theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from (
                (f"{name}.{inner}", *values)
                for inner, *values in differences(value, other)
            )
        elif value != other:
            yield name, value, other


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


def as_system_error(error: BaseException, path: Path | None) -> StorageError | None:
    """Return an error of one line if `error`, of any library, is one of the system that names no file; else None."""
    if isinstance(error, StorageError):
        return error
    where = "" if path is None else f": {str(path)!r}"
    for number, text in _FULL.items():
        if getattr(error, "errno", 0) == number or text in str(error):
            return StorageError(
                number, f"{text}{where}; {_INTACT}; make room and run it again"
            )
    if found := _TENSORSTORE.search(str(error)):
        number = int(found[1])
    elif (
        isinstance(error, OSError) and error.errno is not None and error.filename is None
    ):
        number = error.errno
    else:
        return None
    return StorageError(number, f"{os.strerror(number)}{where}; {_INTACT}; try it again")


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
def held(folder: Path, argument: str, alone: bool = False) -> Iterator[None]:
    """Lock a folder against other processes; the system releases the lock when this process ends.

    Args:
        folder: created if missing.
        argument: name of the caller's argument for the folder.
        alone: only this process of several calls it.

    Raises:
        ValueError: the folder cannot be created, or is held (`FolderLockedError`).
    """
    refusal: FolderLockedError | None = None
    lock = None
    if alone or jax.process_index() == 0:
        writable(folder, argument)
        try:
            lock = _lock(folder / LOCK)
        except ValueError as error:
            is_own = isinstance(error, FolderLockedError) and error.by_this_process
            refusal = FolderLockedError(f"{argument}={str(folder)!r}: {error}", is_own)
    try:
        if not alone and jax.process_count() > 1:
            is_refused = multihost_utils.broadcast_one_to_all(
                np.int32(refusal is not None)
            )
            if is_refused and refusal is None:
                refusal = FolderLockedError(
                    f"{argument}={str(folder)!r}: another process is running here"
                )
        if refusal is not None:
            raise refusal
        yield
    finally:
        if lock is not None:
            _unlock(lock, folder / LOCK)


def _lock(path: Path) -> int | None:
    """Return a file descriptor that holds the lock; None, with a warning, on systems without locks."""
    if fcntl is None:
        print(
            f"{path.parent}: no locks on this system; run one process at a time in it",
            file=sys.stderr,
        )
        return None
    while True:
        with contextlib.ExitStack() as stack:
            file = _open(path)
            stack.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = (
                    os.read(file, 200).decode(errors="replace").strip()
                    or "another process"
                )
                problem = f"{holder} is running here; wait for it, or give another folder"
                raise FolderLockedError(problem, _identity(file) in _held_here) from None
            except OSError as error:
                print(
                    f"{path.parent}: no locks here ({error.strerror}); run one process at a time in it",
                    file=sys.stderr,
                )
                return None
            try:
                is_current = os.path.samestat(os.fstat(file), path.stat())
            except FileNotFoundError:
                is_current = False
            if is_current:  # else the last holder has removed this file meanwhile
                with contextlib.suppress(
                    OSError
                ):  # on a full disk the lock has no name, but works
                    os.ftruncate(file, 0)
                    os.write(
                        file, f"process {os.getpid()} on {socket.gethostname()}".encode()
                    )
                _held_here.add(_identity(file))
                stack.pop_all()
                return file


def _unlock(file: int, path: Path) -> None:
    _held_here.discard(_identity(file))
    try:
        with contextlib.suppress(
            OSError
        ):  # the file may stay: it is the lock that counts
            path.unlink(missing_ok=True)  # still locked
    finally:
        os.close(file)


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
