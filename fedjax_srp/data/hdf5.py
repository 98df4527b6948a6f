"""HDF5 files by client, read by h5py, which is not required otherwise.

A file has groups train/<client> and test/<client> with arrays x and y. In TensorFlow
Federated's files, two in a folder, *_train.h5 and *_test.h5, these are in
examples/<client>, under other names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.rows import LayoutError, Rows, of_clients, raw_arrays, reading
from fedjax_srp.parts.files import check_fits_memory
from fedjax_srp.parts.libraries import needed_by

_LAYOUT = "a layout of HDF5, groups train/<client> and test/<client> of arrays x and y"
SUFFIXES = (".h5", ".hdf5")
_INPUTS = ("x", "pixels", "image", "images", "data", "features")
_LABELS = ("y", "label", "labels", "target", "targets")


def is_hdf5(path: Path) -> bool:
    """Return True for a file with HDF5's suffix, and for a folder of two, *_train and *_test."""
    if path.is_dir():
        return _pair(path) is not None
    return path.suffix in SUFFIXES and path.is_file()


def _pair(folder: Path) -> tuple[Path, Path] | None:
    for suffix in SUFFIXES:
        for train in sorted(folder.glob(f"[!.]*_train{suffix}")):
            test = train.with_name(train.name.replace("_train", "_test"))
            if train.is_file() and test.is_file():
                return train, test
    return None


def read(path: Path) -> RawArrays:
    """Return the examples of all clients."""
    pair = _pair(path) if path.is_dir() else None
    if pair is not None:
        train = _read(path, pair[0], ("examples",), "train")
        test = _read(path, pair[1], ("examples",), "test")
    else:
        train = _read(path, path, ("train", "examples", ""), "train")
        test = _read(path, path, ("test",), "test")
    with reading(path, path, _LAYOUT):
        if train is None:
            raise LayoutError("has no group train; write the clients of training there")
        return raw_arrays(train, test)


def _read(name: Path, path: Path, groups: tuple[str, ...], kind: str) -> Rows | None:
    """Return the rows of the first of these groups that a file has; "" is the file itself."""
    with needed_by(f"data set {str(name)!r}", "h5py, or write an .npz file where it is"):
        import h5py  # pyright: ignore[reportMissingImports] (not required)
    with reading(name, path, _LAYOUT), h5py.File(path, "r") as file:
        for group in groups:
            if group in list(file) or not group:
                clients = {}
                found: Any = _member(file, group) if group else file
                for client in found:
                    clients[client] = _columns(client, _member(found, client))
                return of_clients(clients, kind)
    return None


def _member(group: Any, name: str) -> Any:
    """Return a member of a group; links, which may lead to other files, are refused."""
    import h5py  # pyright: ignore[reportMissingImports] (not required)

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise LayoutError(f"{name!r} is a link; write the arrays themselves there")
    return group[name]


def _columns(client: str, group: Any) -> tuple[np.ndarray, np.ndarray]:
    names = list(group) if hasattr(group, "keys") else []
    columns = []
    for known in (_INPUTS, _LABELS):
        chosen = [name for name in known if name in names]
        if not chosen:
            raise LayoutError(
                f"client {client!r} has {', '.join(names) or 'no arrays'}; give it arrays "
                f"of inputs and of labels, e.g. {known[0]}"
            )
        array = _member(group, chosen[0])
        if array.is_virtual or array.external:
            raise LayoutError(
                f"client {client!r} has its {chosen[0]} in another file; write the numbers "
                "themselves there"
            )
        check_fits_memory(array.nbytes)
        columns.append(np.asarray(array[()]))
    return columns[0], columns[1]
