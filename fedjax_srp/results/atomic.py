"""Atomic replacement: of a file, of several files, and of a result in a folder.

The files of a result belong together, and no system replaces several files at once. So a
new result is complete in a subfolder `NEXT` before its files replace the others one by
one, and readers look there first (`current`): at every moment they find the old result or
the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from fedjax_srp.parts.files import BINARY, NO_WAIT
from fedjax_srp.results.errors import StorageError, as_system_error, writing

# subfolder of a complete result, until all its files have replaced those of the folder
NEXT = ".fedjax_srp.next"
_TOKEN = "[0-9a-f]" * 8
_LEFTOVERS = (".????????.writing", f".*.{_TOKEN}.writing", f".*.{_TOKEN}.gone")
_ABANDONED = 24 * 3600.0  # seconds: the process of an older temporary folder was killed
_NO_LINK = os.O_NOFOLLOW | NO_WAIT if hasattr(os, "O_NOFOLLOW") else 0


def replace(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files atomically, all into temporary folders beside them first.

    Links are replaced, not their targets.

    Args:
        files: path -> function that writes the file to a given path.

    Raises:
        OSError: the disk is full, a path is a folder, or its folder is missing; existing
            files are intact.
    """
    for folder in {path.parent for path in files}:
        clear(folder, _ABANDONED)
    temporaries: dict[Path, Path] = {}
    with contextlib.ExitStack() as stack, writing(next(iter(files)).parent):
        for path, write_to in files.items():
            check_no_folder(path)  # before any file is replaced
            folder = stack.enter_context(_temporary_folder(path.parent))
            temporaries[path] = folder / path.name
            write_to(temporaries[path])
            sync(temporaries[path])
        for path, temporary in temporaries.items():
            temporary.replace(path)
        for folder in {path.parent for path in files}:
            sync(folder)


def check_no_folder(path: Path) -> None:
    """Raise an IsADirectoryError if a folder is in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        reason = os.strerror(errno.EISDIR)
        raise IsADirectoryError(errno.EISDIR, reason, os.fspath(path))


@contextlib.contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """Give a hidden folder, which is removed after the block; `clear` knows its name."""
    parent = parent.resolve(strict=True)
    with tempfile.TemporaryDirectory(
        ".writing", ".", parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def current(folder: Path, name: str) -> Path:
    """Return the path of a file or subfolder of the result in a folder."""
    newer = folder / NEXT
    if (newer / name).exists() and not newer.is_symlink():
        return newer / name
    return folder / name


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Give an empty folder for the files of a new result, complete at the end of the block.

    The caller then calls `settle`. It holds the folder, and has called `settle` before,
    since another process may have been killed before it did.

    Raises:
        OSError: a file cannot be written; the result in the folder is intact.
    """
    staging = folder
    try:
        folder = folder.resolve(strict=True)
        with _temporary_folder(folder) as temporary:
            staging = temporary / "result"
            staging.mkdir()
            yield staging
            for path in (*staging.rglob("*"), staging):
                sync(path)
            staging.rename(folder / NEXT)
            sync(folder)
    except StorageError as error:  # names a folder that is gone
        reason = str(error.strerror).replace(str(staging), str(folder))
        raise StorageError(error.errno, reason) from None
    except Exception as error:
        raise as_system_error(error, folder) or error from None


def settle(folder: Path, names: Iterable[str]) -> None:
    """Let the files and subfolders of the result in `NEXT` replace those of the folder.

    Args:
        folder: of the result.
        names: of the files and subfolders, in the order in which they are replaced.

    Raises:
        OSError: a file cannot be replaced; `current` finds all files of the new result.
    """
    newer = folder / NEXT
    # a link is of a stranger, who may want the files that it leads to
    if newer.is_symlink() or not newer.is_dir():
        return
    try:
        for name in names:
            if (newer / name).exists():
                if (newer / name).is_dir():
                    remove(folder / name)
                (newer / name).replace(folder / name)
        sync(folder)
        newer.rmdir()
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{str(folder)!r}: {error.strerror}; the new result is complete in "
            f"{str(newer)!r}, and is the one that is read; save it again",
        ) from None


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, would survive a loss of power."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # of file systems that cannot
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def append(path: Path, after: int, data: bytes | memoryview) -> None:
    """Truncate a plain file to its first `after` bytes and append data.

    The file is created if missing.
    """
    with os.fdopen(open_plain(path), "r+b") as file:
        file.seek(file.truncate(after))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def open_plain(path: Path) -> int:
    """Open a plain file for reading and writing, created if missing.

    Return its descriptor.

    Links and pipes, which would lead the writer elsewhere, are refused.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | BINARY | _NO_LINK, 0o644)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    raise ValueError(
        f"{str(path)!r} is a link or no plain file: remove it, or give another folder"
    )


def remove(folder: Path) -> None:
    """Remove a folder, renamed first so that it disappears at once.

    Of a link, the link.
    """
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.gone")
        shutil.rmtree(folder.rename(hidden), ignore_errors=True)


def clear(folder: Path, age: float = 0.0) -> None:
    """Remove from a folder what killed writers and removers left.

    Args:
        folder: held by the caller, or `age` is longer than any writer takes.
        age: seconds since the last change of what is removed.
    """
    for pattern in _LEFTOVERS:
        for leftover in folder.glob(pattern):
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime >= age:
                    shutil.rmtree(leftover)


def writable(path: str | os.PathLike, argument: str = "out") -> Path:
    """Return the folder, created if missing; a ValueError of one line if not writable."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileExistsError):
            reason = "is a file"
        raise ValueError(
            f"{argument}={str(folder)!r}: {reason}; give a folder that can be written to"
        ) from None
    return folder
