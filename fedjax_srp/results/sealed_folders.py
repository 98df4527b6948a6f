"""Folders of arrays, sealed with checksums.

Checkpoints, saved states and run folders share one mechanism: a seal, a JSON file written
last, with facts, size and SHA-256 of the sealed files, and a checksum of itself. A folder
without a seal is unfinished, a wrong seal means damage.

Orbax writes the arrays, also those of several processes. It does not detect flipped bits
or truncated files, and has its own errors for a full disk: hence the seals, the atomic
replacement and the errors of one line.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_srp.base import PyTree
from fedjax_srp.parts.files import machine_memory, open_file
from fedjax_srp.results.atomic import remove, sync
from fedjax_srp.results.errors import DamagedError, reading, writing
from fedjax_srp.results.json_files import as_json, has_checksum, read_json

SEAL = "contents.json"  # its entries are `files`, `shapes` and `facts`
_ARRAYS = "arrays"
_WRITER = "async_serialize_from_host"  # begins the names of coroutines of orbax
# of a path that orbax takes for a pattern, and then drops the arrays
_PATTERN = re.compile(r"[*?[\\]" if os.sep == "/" else r"\[")


def write(
    folder: Path, arrays: Mapping[str, Any], facts: Mapping[str, Any], alone: bool = False
) -> None:
    """Write a sealed folder of arrays atomically; an existing one is replaced.

    Several processes write together, each its shards of the arrays, unless `alone` is
    set.

    Raises:
        OSError: the disk is full; existing files are intact.
        ValueError: the folder exists and was not written by `write`.
    """
    check_not_foreign(folder)
    # random: threads of a failed call may still write; safe from planted links
    token = np.int32(secrets.randbits(31))
    if not alone and jax.process_count() > 1:
        token = multihost_utils.broadcast_one_to_all(token)
    staging = folder.with_name(f".{folder.name}.{int(token):08x}.writing")
    is_first = alone or jax.process_index() == 0
    filled = _filled(arrays)
    if alone or jax.process_count() == 1:
        filled = {name: _one_copy(leaf) for name, leaf in filled.items()}
    with writing(folder), contextlib.ExitStack() as on_failure:
        on_failure.callback(shutil.rmtree, staging, ignore_errors=True)
        if is_first:
            staging.mkdir()
        _wait(alone)
        if filled:
            with _checkpointer(staging, alone) as (checkpointer, path):
                checkpointer.save(path, filled)
        if is_first:
            _seal(staging, arrays, facts)
            remove(folder)
            staging.rename(folder)
            sync(folder.parent)
        _wait(alone)
        on_failure.pop_all()


@functools.cache
def _hide_late_writers() -> None:
    """Print nothing of the threads and coroutines of a failed save, which end after its event loop."""
    warnings.filterwarnings("ignore", f"coroutine '{_WRITER}", RuntimeWarning)
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        is_late = str(unraisable.exc_value) == "Event loop is closed"
        if is_late and unraisable.object is None:
            return
        if not getattr(unraisable.object, "__qualname__", "").startswith(_WRITER):
            others(unraisable)

    sys.unraisablehook = hook


def _filled(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays with entries: orbax refuses those without."""
    return {name: leaf for name, leaf in arrays.items() if np.size(leaf)}


def _one_copy(leaf: Any) -> Any:
    """Return one device's copy of an array that every device has.

    Of several copies orbax would write a slice each, and compile a program for every slice.
    """
    if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
        return leaf.addressable_data(0)
    return leaf


def _seal(folder: Path, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write the seal of a folder, and all that is in it to the disk."""
    shapes = {}
    for name, leaf in arrays.items():
        shapes[name] = [list(np.shape(leaf)), str(leaf.dtype)]
    files = digests(folder, filter(Path.is_file, folder.rglob("*")))
    as_json({"files": files, "shapes": shapes, "facts": facts})(folder / SEAL)
    for path in (*folder.rglob("*"), folder):
        sync(path)


def read(
    folder: Path, like: Mapping[str, Any] | None = None, alone: bool = False
) -> dict[str, Any]:
    """Return the arrays of a sealed folder, after verifying every byte.

    Args:
        folder: written by `write`.
        like: name -> array with the devices and sharding to restore to; others become
            NumPy arrays.
        alone: only this process reads.

    Raises:
        DamagedError: a file is missing or damaged.
    """
    like = like or {}
    seal = read_json(folder / SEAL)
    with reading(SEAL, "is not that of arrays"):
        check(folder, seal["files"])
        leaves = _zeros(seal["shapes"], like)
    leaves |= like
    target = _filled(leaves)
    if not target:
        return leaves
    import orbax.checkpoint as ocp

    for name in like:
        if name in target:
            target[name] = ocp.utils.to_shape_dtype_struct(target[name])
    with _checkpointer(folder, alone) as (checkpointer, path):
        return leaves | checkpointer.restore(path, args=ocp.args.StandardRestore(target))


def _zeros(shapes: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return zeros of the shapes and types in a seal, of the arrays that are not in `like`."""
    num_bytes = 0
    leaves = {}
    for name, (shape, kind) in shapes.items():
        if name not in like:
            num_bytes += math.prod(shape) * jnp.dtype(kind).itemsize
            leaves[name] = shape, jnp.dtype(kind)
    if num_bytes > machine_memory():
        raise DamagedError(
            f"{SEAL} lists arrays of {num_bytes} bytes, more than this machine's memory"
        )
    return {name: np.zeros(*leaf) for name, leaf in leaves.items()}


def digests(folder: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Return file name within a folder -> size and SHA-256, for a seal."""
    by_name = {}
    for path in sorted(files):
        with path.open("rb") as file:
            by_name[path.relative_to(folder).as_posix()] = _digest(file)
    return by_name


def check(folder: Path, expected: Mapping[str, Any]) -> None:
    """Check the files of a folder against the `digests` in its seal."""
    for name, digest in expected.items():
        path = PurePosixPath(name)
        if ".." in path.parts or path.is_absolute() or "\0" in name:
            raise DamagedError(f"{name} is not a file of this folder")
        with reading(name), open_file(folder / name) as file:
            if _digest(file) != digest:
                raise ValueError(name)


def read_sealed(path: Path, digest: Any) -> bytes:
    """Return the content of a file, after comparing it with its entry in `digests`.

    Raises:
        DamagedError: the file is missing or damaged.
    """
    with reading(path.name):
        with open_file(path) as file:
            content = file.read()
        if [len(content), hashlib.sha256(content).hexdigest()] != digest:
            raise ValueError(path.name)
    return content


def _digest(file: io.BufferedReader) -> list[Any]:
    checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return [os.fstat(file.fileno()).st_size, checksum]


@contextlib.contextmanager
def _checkpointer(folder: Path, alone: bool) -> Iterator[tuple[Any, Path]]:
    """Give a checkpointer, and its path in a folder.

    The path leads through a link if orbax would not find the folder.
    """
    import orbax.checkpoint as ocp

    index = jax.process_index() if alone else 0
    processes = {index} if alone and jax.process_count() > 1 else None
    options = ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes=processes
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    logging.getLogger("absl").addFilter(_is_not_of_orbax)
    _hide_late_writers()
    path = folder.absolute()
    with contextlib.ExitStack() as stack:
        if not _is_for_orbax(path):
            parent = "/tmp" if _PATTERN.search(tempfile.gettempdir()) else None
            temporary = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
            path = Path(temporary, "link")
            path.symlink_to(folder.absolute())
        checkpointer = ocp.Checkpointer(handler, multiprocessing_options=options)
        yield stack.enter_context(checkpointer), path / _ARRAYS


def _is_for_orbax(path: Path) -> bool:
    """Return False for paths that orbax takes for patterns, or that are not UTF-8."""
    try:
        os.fspath(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return _PATTERN.search(os.fspath(path)) is None


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Return False for logs of orbax: the traceback of each thread, beside the same error."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _wait(alone: bool) -> None:
    if not alone and jax.process_count() > 1:
        multihost_utils.sync_global_devices("held folder")


def named(tree: PyTree) -> dict[str, Any]:
    """Return path, "params/dense/kernel" -> leaf of a tree.

    A NamedTuple and a dict of its fields have equal paths.

    Raises:
        ValueError: two leaves have the same path.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in leaves:
            raise ValueError(
                f"two arrays of a state are called {name!r}: rename one, names without "
                "a slash are safe"
            )
        leaves[name] = leaf
    return leaves


def is_foreign(folder: Path) -> bool:
    """Return True for a path that is neither a link nor a sealed folder of arrays.

    A damaged folder of arrays is not foreign, and a path that does not exist is not.
    """
    if folder.is_symlink() or not folder.exists():
        return False
    files_of_orbax = (folder / _ARRAYS).glob("*ocdbt*")
    return not has_checksum(folder / SEAL) and not any(files_of_orbax)


def check_not_foreign(folder: Path) -> None:
    """Raise a ValueError of one line if `is_foreign`."""
    if is_foreign(folder):
        raise ValueError(
            f"{str(folder)!r} was not written by fedjax_srp: rename it, or give another "
            "folder"
        )
