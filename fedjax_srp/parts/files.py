"""Files of whoever wrote them: plain ones that fit the memory."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # of pipes
BINARY = getattr(os, "O_BINARY", 0)  # else Windows changes the ends of lines
LARGEST_TEXT = 1 << 28  # bytes, of JSON and TOML
# what the conversion of a file's content raises if the content is not what it should be
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextlib.contextmanager
def open_file(path: Path, largest: int | None = None) -> Iterator[io.BufferedReader]:
    """Open a file for reading, of whoever wrote it: a plain one that fits the memory; pipes and devices never end.

    An error in the block, such as one of the disk, has the path.

    Args:
        path: of the file; links are followed.
        largest: size in bytes; None for that of this machine's memory.

    Raises:
        OSError: in one line, with the path.
    """
    descriptor = os.open(path, os.O_RDONLY | BINARY | NO_WAIT)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(
                errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)
            )
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", os.fspath(path))
        if found.st_size > (machine_memory() if largest is None else largest):
            raise OSError(
                errno.ENOMEM,
                f"{found.st_size} bytes are too many to read",
                os.fspath(path),
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        if error.filename is None and error.errno is not None:  # else a text of its own
            error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """Return the text of a small file, see `open_file`."""
    with open_file(path, LARGEST_TEXT) as file:
        return file.read().decode("utf-8")


def check_archive(archive: zipfile.ZipFile) -> None:
    """Raise a ValueError for two entries of one name, or entries that unpack to more than the memory."""
    entries = archive.infolist()
    for name, number in Counter(entry.filename for entry in entries).items():
        if number > 1:
            raise ValueError(f"it has {number} entries {name!r}")
    check_fits_memory(sum(entry.file_size for entry in entries))


def check_fits_memory(num_bytes: int) -> None:
    """Raise a ValueError for arrays that are larger than the memory, before they are read."""
    if num_bytes > machine_memory():
        raise ValueError(f"{num_bytes} bytes are too many to read")


def machine_memory() -> int:
    """Return the bytes of this machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize
