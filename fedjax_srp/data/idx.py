"""IDX files, MNIST's format: train-images-idx3-ubyte and train-labels-idx1-ubyte, and likewise t10k, also with .gz.

So Fashion-MNIST, KMNIST and one set of EMNIST come, in a folder or in its folder `raw`,
where torchvision writes.
"""

from __future__ import annotations

import gzip
import io
import math
import re
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.rows import LayoutError, Rows, raw_arrays, reading
from fedjax_srp.parts.files import check_fits_memory, open_file

_LAYOUT = "IDX format, as MNIST's train-images-idx3-ubyte"
_IMAGES = re.compile(r"(.*?)(train|t10k|test)([-_.]images[-.]idx(\d)-ubyte)(\.gz)?")
_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def is_idx(folder: Path) -> bool:
    """Return True for a folder with a file of images, or whose folder raw has one."""
    return bool(_images(folder)[1])


def _images(folder: Path) -> tuple[Path, list[re.Match[str]]]:
    """Return the folder that has the files, and the names of those of images; without .gz if both are there."""
    root = folder / "raw" if (folder / "raw").is_dir() else folder
    found = {}
    for path in sorted(root.iterdir(), reverse=True):
        match = _IMAGES.fullmatch(path.name)
        if match:
            found[path.name.removesuffix(".gz")] = match
    return root, list(found.values())


def read(folder: Path) -> RawArrays:
    """Return images and labels of both splits."""
    root, found = _images(folder)
    parts: dict[str, Rows] = {}
    with reading(folder, folder, _LAYOUT):
        for match in found:
            prefix, split, rest, axes, suffix = match.groups()
            kind = "train" if split == "train" else "test"
            if kind in parts:
                names = sorted(other.group() for other in found)
                raise LayoutError(
                    f"has several sets, {', '.join(names)}; give a folder with one"
                )
            labels = rest.replace("images", "labels").replace(f"idx{axes}", "idx1")
            x = _read(folder, root / match.group())
            y = _read(folder, _of_labels(root / f"{prefix}{split}{labels}", suffix or ""))
            if y.ndim != 1 or len(x) != len(y):
                raise LayoutError(
                    f"{match.group()} has {len(x)} images, and labels have shape {y.shape}; "
                    "copy both again"
                )
            parts[kind] = Rows(x, y)
        if len(parts) < 2:
            missing = "t10k-images" if "train" in parts else "train-images"
            raise LayoutError(f"has no {missing}-idx3-ubyte; copy all four files")
        return raw_arrays(parts["train"], parts["test"])


def _of_labels(path: Path, suffix: str) -> Path:
    """Return the file of labels, plain or compressed; if there is none, with the suffix of the images."""
    compressed = path.with_name(f"{path.name}.gz")
    for file in (path, compressed):
        if file.exists():
            return file
    return path.with_name(f"{path.name}{suffix}")


def _read(folder: Path, path: Path) -> np.ndarray:
    with reading(folder, path, _LAYOUT), open_file(path) as file:
        return decode(file.read())


def decode(content: bytes) -> np.ndarray:
    """Return the array of a file's content, compressed or not.

    Two zeros, a type, the number of axes, their lengths, then the entries, big-endian.
    """
    stream: BinaryIO = io.BytesIO(content)
    if content[:2] == b"\x1f\x8b":
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=stream))
    head = stream.read(4)
    if head[:2] != b"\0\0" or len(head) < 4 or head[2] not in _TYPES:
        raise ValueError("it does not begin as IDX")
    shape = np.frombuffer(stream.read(4 * head[3]), ">u4").tolist()
    dtype = np.dtype(_TYPES[head[2]])
    num_bytes = math.prod(shape) * dtype.itemsize
    check_fits_memory(num_bytes)
    flat = np.frombuffer(stream.read(num_bytes + 1), dtype)  # one more, to see the end
    return flat.reshape(shape).astype(dtype.newbyteorder("="))
