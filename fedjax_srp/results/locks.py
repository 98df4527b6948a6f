"""Locks on folders against other processes."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_srp.parts.checks import printable
from fedjax_srp.results.atomic import open_plain, writable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".fedjax_srp.lock"
# device and inode of the locks that this process holds
_held_here: set[tuple[int, int]] = set()


class FolderLockedError(ValueError):
    """A folder is held.

    Attributes:
        by_this_process: waiting for another process is of no use.
    """

    def __init__(self, message: str, by_this_process: bool = False):
        super().__init__(message)
        self.by_this_process = by_this_process


@contextlib.contextmanager
def held(folder: Path, argument: str, alone: bool = False) -> Iterator[None]:
    """Lock a folder against other processes until the end of the block.

    The system releases the lock when this process ends.

    Args:
        folder: created if missing.
        argument: name of the caller's argument for the folder.
        alone: only this process of several calls it.

    Raises:
        ValueError: the folder cannot be created, or is held (`FolderLockedError`).
    """
    where = f"{argument}={str(folder)!r}"
    refusal: FolderLockedError | None = None
    with contextlib.ExitStack() as stack:
        if alone or jax.process_index() == 0:
            writable(folder, argument)
            try:
                stack.enter_context(_locked(folder / LOCK))
            except ValueError as error:
                is_own = isinstance(error, FolderLockedError) and error.by_this_process
                refusal = FolderLockedError(f"{where}: {error}", is_own)
        if not alone and jax.process_count() > 1:
            is_refused = np.int32(refusal is not None)
            if multihost_utils.broadcast_one_to_all(is_refused) and refusal is None:
                refusal = FolderLockedError(f"{where}: another process is running here")
        if refusal is not None:
            raise refusal
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock in a file.

    Without one, after a warning, where the system has none.
    """
    descriptor = _acquire(path)
    try:
        yield
    finally:
        if descriptor is not None:
            _held_here.discard(_identity(descriptor))
            try:
                # still locked; the file may stay, since it is the lock that counts
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


def _acquire(path: Path) -> int | None:
    """Return a file descriptor that holds the lock.

    None where the system has no locks.
    """
    if fcntl is None:
        _warn(path.parent, "no locks on this system")
        return None
    while True:
        with contextlib.ExitStack() as stack:
            descriptor = open_plain(path)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 200).decode(errors="replace").strip()
                raise FolderLockedError(
                    f"{printable(holder) or 'another process'} is running here; wait for it, or "
                    "give another folder",
                    _identity(descriptor) in _held_here,
                ) from None
            except OSError as error:
                _warn(path.parent, f"no locks here ({error.strerror})")
                return None
            if _is_removed(descriptor, path):  # by the last holder, meanwhile
                continue
            # on a full disk the lock has no name, but works
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                name = f"process {os.getpid()} on {socket.gethostname()}"
                os.write(descriptor, name.encode())
            _held_here.add(_identity(descriptor))
            stack.pop_all()
            return descriptor


def _warn(folder: Path, problem: str) -> None:
    line = f"{folder}: {problem}; run one process at a time in it"
    print(printable(line), file=sys.stderr)


def _is_removed(descriptor: int, path: Path) -> bool:
    try:
        return not os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return True


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
