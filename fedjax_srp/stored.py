"""Arrays in folders that cannot lie, and folders that one process holds at a time.

A sealed folder has a list of its files with their checksums, written with them. A folder appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import math
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_srp.base import PyTree

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

SEAL = "contents.json"
_ARRAYS = "arrays"
_attempts = {alone: itertools.count() for alone in (False, True)}  # equal in all processes that write together
_FULL = {errno.ENOSPC: "No space left on device", errno.EDQUOT: "Disk quota exceeded", errno.EFBIG: "File too large"}

_MAKE_ROOM = "what was written before is intact; make room and run it again"


class DamagedError(ValueError):
    """A file is not what was written; its text says which one and how."""


class HeldError(ValueError):
    """Another process holds a folder."""


def named(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by their path, "params/dense/kernel": the same for a NamedTuple and a dict of its fields.

    Raises:
        ValueError: two leaves with one path.
    """

    def word(part: Any) -> str:  # of a field, a key, a place
        return str(next(getattr(part, name) for name in ("name", "key", "idx") if hasattr(part, name)))

    found: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = "/".join(map(word, path))
        if name in found:
            raise ValueError(f"two arrays of a state are called {name!r}: rename one, names without a slash are safe")
        found[name] = leaf
    return found


def nested(arrays: Mapping[str, Any]) -> Any:
    """Dicts of what `named` made, or the array itself where the tree was one."""
    if set(arrays) == {""}:
        return arrays[""]
    tree: dict[str, Any] = {}
    for name, leaf in arrays.items():
        *front, last = name.split("/")
        place = tree
        for part in front:
            place = place.setdefault(part, {})
        place[last] = leaf
    return tree


def write(folder: Path, arrays: Mapping[str, Any], facts: Mapping[str, Any], alone: bool = False) -> None:
    """Writes a sealed folder, in the place of one that is there.

    Several processes write together, each what it holds of the arrays, unless `alone` is set.

    Raises:
        OSError: the disk is full; what was there before is still there.
    """
    # A new name each time: threads of an attempt that failed may still write, and tensorstore remembers what it read.
    staging = folder.with_name(f".{folder.name}.{next(_attempts[alone])}.writing")
    first = alone or jax.process_index() == 0
    shapes = {name: [list(np.shape(leaf)), str(leaf.dtype)] for name, leaf in arrays.items()}
    real = {name: leaf for name, leaf in arrays.items() if np.size(leaf)}  # orbax takes no empty ones
    try:
        if first:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
        _wait(alone)
        if real:
            with _checkpointer(alone) as checkpointer:
                checkpointer.save((staging / _ARRAYS).absolute(), real)
        if first:
            files = {str(path.relative_to(staging)): _digest(path) for path in staging.rglob("*") if path.is_file()}
            _write_json(staging / SEAL, {"files": files, "shapes": shapes, "facts": facts})
            remove(folder)
            staging.rename(folder)
        _wait(alone)
    except Exception as error:  # tensorstore has its own types for what the system refuses
        if (full := as_full_disk(error, folder)) is None:
            raise
        shutil.rmtree(staging, ignore_errors=True)
        raise full from None


def read(folder: Path, like: Mapping[str, Any] | None = None, alone: bool = False) -> dict[str, Any]:
    """The arrays of a sealed folder, after a look at every byte.

    Args:
        folder: that `write` made.
        like: arrays whose devices and sharding those of the same names get; NumPy for the others.
        alone: whether other processes leave it to this one.

    Raises:
        DamagedError: a file is missing, or is not what was written.
    """
    shapes, like = check(folder)["shapes"], dict(like or {})
    found = {
        name: np.zeros(shape, jnp.dtype(kind)) for name, (shape, kind) in shapes.items() if name not in like
    } | like
    real = {name: leaf for name, leaf in found.items() if np.size(leaf)}
    if not real:
        return found
    import orbax.checkpoint as ocp

    placed = {name: leaf for name, leaf in real.items() if name in like}
    target = real | jax.tree.map(ocp.utils.to_shape_dtype_struct, placed)
    with _checkpointer(alone) as checkpointer:
        return found | checkpointer.restore((folder / _ARRAYS).absolute(), args=ocp.args.StandardRestore(target))


def check(folder: Path) -> dict[str, Any]:
    """What the seal of a folder says, after a look at every byte of the folder.

    Raises:
        DamagedError: a file is missing, or is not what was written.
    """
    sealed = seal(folder)
    for name, digest in sealed["files"].items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if found != digest:
            raise DamagedError(f"{name} is not what was written")
    return sealed


def seal(folder: Path) -> dict[str, Any]:
    """What was written with the files of a folder: their checksums, shapes, facts."""
    return read_json(folder / SEAL)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON that knows its checksum, whole or not at all."""
    replace({path: lambda temporary: _write_json(temporary, value)})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps({"checksum": _checksum(value), "content": value}, indent=1), "utf-8")


def read_json(path: Path) -> Any:
    """What `write_json` wrote.

    Raises:
        DamagedError: it is missing, or not what was written.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
        if found["checksum"] == _checksum(found["content"]):
            return found["content"]
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DamagedError(f"{path.name} is not what was written")


def replace(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Writes files, all of them or none: each beside its place, and when all are there, into their places.

    Args:
        files: path -> what writes the file to the path that it is given. A device or a pipe is written to as it is.

    Raises:
        OSError: the disk is full; what was there before is still there.
    """
    beside = {path: path.resolve() for path in files if path.is_file() or not path.exists()}
    beside = {path: place.with_name(f".{place.name}.tmp") for path, place in beside.items()}
    try:
        for path, write_to in files.items():
            write_to(beside.get(path, path))
        for path, temporary in beside.items():
            temporary.replace(path.resolve())
    except Exception as error:
        raise as_full_disk(error, next(iter(files)).parent) or error from None
    finally:
        for temporary in beside.values():
            temporary.unlink(missing_ok=True)


def jsonable(value: Any) -> Any:
    """`value` in the words of strict JSON, and unchanged when it is already: lossless for plain settings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__") or isinstance(value, np.generic):
        return jsonable(np.asarray(value).tolist())
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)


def remove(folder: Path) -> None:
    """Takes a folder away: at once for those who look, then byte by byte."""
    if folder.exists():
        gone = folder.with_name(f".{folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def clear(folder: Path) -> None:
    """Removes what a kill left of `write` and `remove` in a folder."""
    for pattern in (".*.writing", ".*.gone"):
        for left in folder.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def as_full_disk(error: BaseException, place: Path | None) -> OSError | None:
    """The error in one line if a full disk is behind it, whichever library says so; `place` is None if not known."""
    if isinstance(error, OSError) and _MAKE_ROOM in str(error):
        return error
    code = getattr(error, "errno", None)
    known = code if code in _FULL else next((code for code, text in _FULL.items() if text in str(error)), None)
    where = "" if place is None else f": {str(place)!r}"
    return None if known is None else OSError(known, f"{_FULL[known]}{where}; {_MAKE_ROOM}")


@contextlib.contextmanager
def held(folder: Path, argument: str) -> Iterator[None]:
    """Holds a folder against other processes; the system lets go of it when this one ends, however it ends.

    Args:
        folder: made where missing.
        argument: how the caller calls the folder.

    Raises:
        HeldError: another process holds it.
    """
    refusal, lock = "", None
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = _lock(folder / ".lock")
        except BlockingIOError as error:
            refusal = f"{argument}={str(folder)!r}: {error} is running here; wait for it, or give another folder"
    try:
        if jax.process_count() > 1 and multihost_utils.broadcast_one_to_all(np.int32(bool(refusal))):
            refusal = refusal or f"{argument}={str(folder)!r}: another process is running here"
        if refusal:
            raise HeldError(refusal)
        yield
    finally:
        if lock is not None:
            (folder / ".lock").unlink(missing_ok=True)  # while it is held, so nobody else's
            os.close(lock)


def _lock(path: Path) -> int | None:
    """A file descriptor that holds the lock; None, and a word about it, where there are no locks.

    Raises:
        BlockingIOError: somebody else holds it; its text says who.
    """
    if fcntl is None:
        print(f"{path.parent}: no locks on this system; run one process at a time in it", file=sys.stderr)
        return None
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 200).decode(errors="replace").strip() or "another process"
            os.close(file)
            raise BlockingIOError(holder) from None
        except OSError as error:
            os.close(file)
            print(f"{path.parent}: no locks here ({error.strerror}); run one process at a time in it", file=sys.stderr)
            return None
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            os.ftruncate(file, 0)
            with contextlib.suppress(OSError):  # a full disk keeps no name, and the lock holds without one
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return file
        os.close(file)  # the one who held it took the file away in between


@contextlib.contextmanager
def _checkpointer(alone: bool) -> Iterator[Any]:
    import orbax.checkpoint as ocp

    index = jax.process_index() if alone else 0
    processes = {index} if alone and jax.process_count() > 1 else None
    options = ocp.options.MultiprocessingOptions(primary_host=index, active_processes=processes)
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    logging.getLogger("absl").addFilter(_not_of_orbax)
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        yield checkpointer


def _not_of_orbax(record: logging.LogRecord) -> bool:
    """What orbax has to say is raised; its threads log it too, with a traceback each."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _wait(alone: bool) -> None:
    if not alone and jax.process_count() > 1:
        multihost_utils.sync_global_devices("fedjax_srp.stored")


def _digest(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
