"""Errors of storage: damaged files, and errors of the system in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.files import MALFORMED

_FULL = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large",
}
# of a disk or a process, whatever the file
_ANYWHERE = (errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE)
_INTACT = "what was written before is intact"
# in the errors of tensorstore, which are ValueErrors
_TENSORSTORE = re.compile(r"os_error_code='(\d+)'")


class DamagedError(ValueError):
    """Damaged file; the message names it and the damage."""

    def __init__(self, message: str):
        super().__init__(printable(message))  # it may have names in files of others


class StorageError(OSError):
    """Error of the system.

    `strerror` is one line with the folder, and says what is intact.
    """


@contextlib.contextmanager
def reading(what: str, problem: str = "is not what was written") -> Iterator[None]:
    """Raise a DamagedError if what is read in the block cannot be read, or has another content."""
    try:
        yield
    except DamagedError:
        raise
    except OSError as error:
        raise DamagedError(f"{what}: {error.strerror}") from None
    except (MemoryError, *MALFORMED):  # a checksum is no secret
        raise DamagedError(f"{what} {problem}") from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise errors of the system in the block as `as_system_error` does, also those of libraries."""
    try:
        yield
    except Exception as error:
        raise as_system_error(error, path) or error from None


def as_system_error(error: BaseException, path: Path | None) -> StorageError | None:
    """Return an error of one line for an error of the system that names no file, or that any file may have.

    Libraries wrap errors of the system in types of their own. Other errors give None.
    """
    if isinstance(error, StorageError):
        return error
    where = "" if path is None else f": {str(path)!r}"
    for number, reason in _FULL.items():
        if getattr(error, "errno", 0) == number or reason in str(error):
            return StorageError(
                number, f"{reason}{where}; {_INTACT}; make room and run it again"
            )
    code = _TENSORSTORE.search(str(error))
    if code is not None:
        number = int(code[1])
    elif isinstance(error, OSError) and (
        error.errno in _ANYWHERE or (error.errno and error.filename is None)
    ):
        number = error.errno
    else:
        return None
    return StorageError(number, f"{os.strerror(number)}{where}; {_INTACT}; try it again")
