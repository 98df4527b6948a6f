"""Pickles of strangers, read without running what they say: numbers, texts, lists, dicts and plain NumPy arrays.

A pickle is a program that may call any function it names. Here the few names that plain
arrays need are answered by classes and functions of this file, and any other is refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, BinaryIO, Literal

import numpy as np
from typing_extensions import override

from fedjax_srp.parts.files import check_archive

_PLAIN = re.compile(r"[<>|=]?([biuf]\d{1,2}|\?|O8?|[US]\d{1,6})")


# entries of lists, a shared one counted each time, that a small pickle may have
_MOST_SHARED = 10**7


class _Type:
    """A dtype: its text, such as "f4", and the byte order that its state adds."""

    def __init__(self, text: Any, *_: Any):
        if not isinstance(text, str) or not _PLAIN.fullmatch(text):
            raise UnpicklingError(f"it has an array of type {text!r:.40}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """An array: what it becomes is known when its state is set."""

    entries: Any = None  # a list, of an array of objects
    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        self.shape = tuple(map(int, shape))
        self.order: Literal["C", "F"] = "F" if is_fortran else "C"
        if kind.dtype.hasobject:
            self.entries = list(content)
        else:
            flat = np.frombuffer(bytes(content), kind.dtype)
            self.array = flat.reshape(self.shape, order=self.order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(content: Any, kind: _Type, shape: Any, order: str) -> np.ndarray:
    if kind.dtype.hasobject or order not in ("C", "F"):
        raise UnpicklingError("it has an array of objects in a buffer")
    return np.frombuffer(bytes(content), kind.dtype).reshape(shape, order=order)


def _scalar(kind: _Type, content: Any) -> Any:
    if kind.dtype.hasobject:
        raise UnpicklingError("it has a scalar of a Python object")
    text = content.encode("latin1") if isinstance(content, str) else bytes(content)
    return np.frombuffer(text, kind.dtype)[0]


def _encode(text: str = "", encoding: str = "latin1") -> bytes:
    """Return the bytes that old pickles hold as text, or none."""
    return str(text).encode("latin1")


class _Call:
    """A function without attributes that a pickle could set."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise UnpicklingError("it changes a function")


_NAMES: dict[str, Any] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "_codecs.encode": _Call(_encode),
    "__builtin__.bytes": _Call(_encode),
}
for _core in ("numpy.core", "numpy._core"):
    _NAMES[f"{_core}.multiarray._reconstruct"] = _Call(_reconstruct)
    _NAMES[f"{_core}.multiarray.scalar"] = _Call(_scalar)
    _NAMES[f"{_core}.numeric._frombuffer"] = _Call(_from_buffer)


class _Reader(pickle.Unpickler):
    """An unpickler that knows no name but those of plain arrays."""

    @override
    def find_class(self, module: str, name: str, /) -> Any:
        if found := _NAMES.get(f"{module}.{name}"):
            return found
        raise UnpicklingError(
            f"it asks for {module:.40}.{name:.40}, which is not run: only numbers, texts, "
            "lists, dicts and NumPy arrays are read"
        )

    @override
    def persistent_load(self, pid: Any, /) -> Any:
        raise UnpicklingError("it refers to objects outside of the file")


def load(file: BinaryIO) -> Any:
    """Return what a pickle holds, or raise an error of wrong content; nothing in it is run."""
    content = file.read()
    for operation, argument, _ in pickletools.genops(content):
        # the unpickler reserves memory for all entries before this one
        if "PUT" in operation.name and (argument or 0) > len(content):
            raise UnpicklingError(f"its memo has an entry {argument}")
    plain = _plain(_Reader(io.BytesIO(content)).load(), {})
    if _num_entries(plain, {}) > max(len(content), _MOST_SHARED):
        raise UnpicklingError("its lists contain each other too often")
    return plain


def load_npz(file: BinaryIO) -> dict[str, Any]:
    """Return the entries of an .npz file, also of those that hold Python objects."""
    entries = {}
    with zipfile.ZipFile(file) as archive:
        check_archive(archive)
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as entry:
                    entries[name.removesuffix(".npy")] = _entry(entry)
    return entries


def _entry(file: Any) -> Any:
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_2_0
    if version == (1, 0):
        read_header = np.lib.format.read_array_header_1_0
    *_, dtype = read_header(file)
    if dtype.hasobject:
        return load(file)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Replace the arrays of this file by NumPy's, at any depth; an array of one object by the object."""
    if id(value) in known:
        return known[id(value)]
    plain = value
    if isinstance(value, _Array):
        plain = value.array
        if value.entries is not None:
            entries = _plain(value.entries, known)
            plain = np.empty(len(entries), object)
            for i, entry in enumerate(entries):  # lists, too, are single entries
                plain[i] = entry
            plain = plain.reshape(value.shape, order=value.order)
            if plain.ndim == 0:
                plain = plain.item()
    elif isinstance(value, _Type):
        plain = str(value.dtype)
    elif isinstance(value, dict):
        plain = {}
        for key, entry in value.items():
            plain[_plain(key, known)] = _plain(entry, known)
    elif isinstance(value, list | tuple):
        plain = type(value)([_plain(entry, known) for entry in value])
    known[id(value)] = plain
    return plain


def _num_entries(value: Any, known: dict[int, int]) -> int:
    """Count the entries of lists and dicts at all depths; a list that is in another twice counts twice."""
    if id(value) in known:
        return known[id(value)]
    inner = value if isinstance(value, list | tuple) else ()
    if isinstance(value, dict):
        inner = value.values()
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        inner = value.ravel().tolist()
    known[id(value)] = 1 + sum(_num_entries(entry, known) for entry in inner)
    return known[id(value)]
