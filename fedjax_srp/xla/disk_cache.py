"""Cache of compiled programs on disk, so that later processes do not compile equal programs again.

It is JAX's persistent compilation cache in a folder of the user's cache. JAX's environment variables take precedence:
`JAX_COMPILATION_CACHE_DIR` chooses another folder, `JAX_ENABLE_COMPILATION_CACHE=false` turns it off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import sys
import time
import warnings
import zlib
from pathlib import Path

import jax

MOST = 10**9  # bytes; beyond that, the least recently read programs are removed
UNUSED = 30 * 24 * 3600.0  # seconds after which an unread program is removed
WRITING = 60.0  # seconds for which another process may still write a program
_RENAMED = 1.0  # seconds from the last change of content to one of name or mode
_ZSTD = b"\x28\xb5\x2f\xfd"  # the first bytes of programs that are not compressed by zlib


def folder() -> Path:
    """Return the folder for this kind of processor, since machines may share a home."""
    variables = ("XDG_CACHE_HOME", "LOCALAPPDATA")
    home = next(filter(None, map(os.environ.get, variables)), "~/.cache")
    processor = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        processor = next(line for line in lines if line.startswith(("flags", "Features")))
    kind = hashlib.sha256(f"{platform.machine()} {processor}".encode()).hexdigest()[:8]
    return Path(home).expanduser() / "fedjax_srp" / f"compiled-{kind}"


def cache_programs() -> None:
    """Keep compiled programs on disk from now on, for later processes; print a line when the folder is created.

    The command line does this by itself. The folder is `~/.cache/fedjax_srp/compiled-...` (or below
    `$XDG_CACHE_HOME`), one for each kind of processor, at most 1 GB. Does nothing if JAX's own settings name a cache or
    turn it off. Programs are code: if others could write to the folder, or replace it or one that it lies in, it is
    not used, and a line says so.
    """
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    with contextlib.suppress(OSError, RuntimeError):  # a full disk, a missing home
        cache = folder()
        if chosen and chosen != os.fspath(cache):
            return
        is_new = not cache.is_dir()
        _make(cache)
        shared = _shared_with_others(cache)
        if shared is not None:
            _use(None)
            print(
                f"compiled programs are not kept, because others could replace them: give {shared} to yourself alone "
                f"(chmod go-w {shared}), or choose another folder with XDG_CACHE_HOME",
                file=sys.stderr,
            )
            return
        _clear(cache)
        _use(os.fspath(cache))
        # a truncated program, or one that another process is writing, is compiled again
        warnings.filterwarnings(
            "ignore", "Error (reading|writing) persistent compilation cache"
        )
        if is_new:
            print(
                f"compiled programs are kept in {cache}, at most {MOST / 1e9:g} GB: delete it at will; "
                "JAX_ENABLE_COMPILATION_CACHE=false keeps none",
                file=sys.stderr,
            )


def _use(cache: str | None) -> None:
    """Use a cache in this process and, by the environment, in the workers of a grid."""
    if cache is None:
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    else:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    jax.config.update("jax_compilation_cache_dir", cache)


def _make(cache: Path) -> None:
    """Make a folder and those that it lies in, each for this user alone."""
    missing = [path for path in (cache, *cache.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _shared_with_others(cache: Path) -> Path | None:
    """Return the first folder, from the cache up to the home, that others can write to; None if there is none.

    Without a home above it, up to the root. In a sticky folder, such as /tmp, others cannot replace what is not theirs.
    """
    if not hasattr(os, "getuid"):  # Windows
        return None
    home = Path(os.path.expanduser("~"))  # unlike Path.home it never raises
    homes = (home, home.resolve())
    for path in (cache.absolute(), cache.resolve()):  # a link can be replaced too
        for each in (path, *path.parents):
            status = each.stat()
            is_sticky = status.st_mode & stat.S_ISVTX and each != path
            is_writable = status.st_mode & 0o022 and not is_sticky
            if is_writable or status.st_uid not in (os.getuid(), 0):
                return each
            if each in homes:
                break
    return None


def _clear(cache: Path) -> None:
    """Remove programs that cannot be read, or have another's name, and those beyond the limits.

    The limits are `UNUSED` seconds without a reader, and `MOST` bytes, of which the oldest go.
    """
    files: dict[Path, os.stat_result] = {}
    for path in cache.glob("*-cache"):
        # Another process has just removed it, or it is another user's.
        with contextlib.suppress(OSError):
            status = path.stat()
            if _is_readable(path, status):
                files[path] = status
            else:
                path.unlink()
    room = MOST
    for path in sorted(files, key=lambda path: files[path].st_atime, reverse=True):
        room -= files[path].st_size
        if room < 0 or time.time() - files[path].st_atime > UNUSED:
            path.unlink(missing_ok=True)


def _is_readable(path: Path, status: os.stat_result) -> bool:
    """Return False for a program that was not written to its end: JAX would compile it in every process.

    Also for one that was renamed after it was written: its name is that of another program, which JAX
    would take it for. It is read once: a program that can be read becomes a file that is read only.
    """
    if status.st_ctime - status.st_mtime > _RENAMED:
        return False
    is_checked = not status.st_mode & stat.S_IWUSR
    if is_checked or time.time() - status.st_mtime < WRITING:
        return True
    content = path.read_bytes()
    if content.startswith(_ZSTD):  # by a library that is not a dependency
        return True
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    if hasattr(os, "getuid"):  # Windows does not remove such files
        path.chmod(0o400)
        os.utime(path)  # by the clock of its disk: not older than its mode
        # it was not used
        os.utime(path, ns=(status.st_atime_ns, path.stat().st_mtime_ns))
    return True
