"""Cache of compiled programs on disk, so that later processes do not compile equal programs again.

It is JAX's persistent compilation cache in a folder of the user's cache. JAX's environment variables take precedence:
`JAX_COMPILATION_CACHE_DIR` chooses another folder, `JAX_ENABLE_COMPILATION_CACHE=false` turns it off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import time
import warnings
from pathlib import Path

import jax

MOST = 10**9  # bytes; beyond that, the least recently read programs are removed
UNUSED = 30 * 24 * 3600.0  # seconds after which an unread program is removed


def folder() -> Path:
    """Return the folder for this kind of processor, since machines may share a home."""
    home = (
        os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    )
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
    turn it off, or if others could write to the folder: programs are code.
    """
    given = {
        name: getattr(jax.config, f"jax_{name}")
        for name in ("compilation_cache_dir", "enable_compilation_cache")
    }
    if given["compilation_cache_dir"] or not given["enable_compilation_cache"]:
        return
    with contextlib.suppress(OSError, RuntimeError):  # a full disk, a missing home
        cache = folder()
        is_new = not cache.is_dir()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = cache.stat()
        if hasattr(os, "getuid") and (
            found.st_uid != os.getuid() or found.st_mode & 0o022
        ):
            return
        _clear(cache)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.fspath(
            cache
        )  # for the workers of a grid
        jax.config.update("jax_compilation_cache_dir", os.fspath(cache))
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


def _clear(cache: Path) -> None:
    """Remove programs unread for `UNUSED` seconds, and the least recently read ones beyond `MOST` bytes."""
    files, room = [], MOST
    for path in cache.glob("*-cache"):
        with contextlib.suppress(
            FileNotFoundError
        ):  # another process has just removed it
            files.append((path.stat(), path))
    for found, path in sorted(files, key=lambda each: -each[0].st_atime):
        room -= found.st_size
        if room < 0 or time.time() - found.st_atime > UNUSED:
            path.unlink(missing_ok=True)
