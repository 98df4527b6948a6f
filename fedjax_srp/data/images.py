"""Folders of images: train/<client>/<class>/*.png and test/..., or <client>/<class>/*.png, or train/<class>/*.png.

Pillow reads them. They have one size and one mode, grey or colour.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.rows import LayoutError, Rows, of_clients, raw_arrays, reading
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.files import open_file

_LAYOUT = "a layout of images, train/<client>/<class>/*.png or <client>/<class>/*.png"
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # Pillow's readers of others may start programs
_LOOKED_AT = 20  # entries of a folder, to see what is in it


def is_images(folder: Path) -> bool:
    """Return True if a folder has images in folders of classes, of clients or not."""
    root = folder / "train"
    if root.is_dir():
        return _depth(root) in (1, 2)
    return _depth(folder) == 2


def _depth(folder: Path, most: int = 2) -> int | None:
    """Return how many folders are between a folder and its images; None if it has none."""
    for path in itertools.islice(_entries(folder), _LOOKED_AT):
        if path.suffix.lower() in SUFFIXES:
            return 0
        if most and path.is_dir():
            depth = _depth(path, most - 1)
            if depth is not None:
                return depth + 1
    return None


def _entries(folder: Path) -> Iterable[Path]:
    """Return the entries of a folder that are not hidden, in order."""
    found = (path for path in folder.iterdir() if path.name[0] != ".")
    return sorted(path for path in found if path.name != "Thumbs.db")


def read(folder: Path) -> RawArrays:
    """Return the images of all clients, uint8, with the names of folders as labels."""
    roots = {"train": folder / "train", "test": folder / "test"}
    if not roots["train"].is_dir():
        roots = {"train": folder}
    parts = []
    depth = _depth(roots["train"])
    for kind, root in roots.items():
        with reading(folder, root, _LAYOUT):
            if not root.is_dir():
                raise FileNotFoundError(root)
            if depth == 1:
                x, y = _of_client(folder, root)
                parts.append(Rows(np.array(x), np.array(y)))
                continue
            clients: dict[str, Any] = {}
            for path in _folders(root, "client"):
                x, y = _of_client(folder, path)
                clients[path.name] = (np.array(x), np.array(y))
            parts.append(of_clients(clients, kind))
    with reading(folder, folder, _LAYOUT):
        return raw_arrays(parts[0], parts[1] if len(parts) > 1 else None)


def _folders(root: Path, role: str) -> list[Path]:
    found = list(_entries(root))
    for path in found:
        if not path.is_dir():
            raise LayoutError(
                f"{path.name} is not in the folder of a {role}; move it there"
            )
    return found


def _of_client(folder: Path, client: Path) -> tuple[list[np.ndarray], list[str]]:
    """Return images and names of classes from the folders of classes."""
    images: list[np.ndarray] = []
    labels: list[str] = []
    others: list[str] = []
    for of_class in _folders(client, "class"):
        for path in _entries(of_class):
            if path.suffix.lower() not in SUFFIXES:
                others.append(path.name)
                continue
            with reading(folder, path, _LAYOUT):
                image = decode(path)
                if images and image.shape != images[0].shape:
                    raise LayoutError(
                        f"has shape {image.shape}, others {images[0].shape}; give all "
                        "images one size and one mode"
                    )
            images.append(image)
            labels.append(of_class.name)
    if others:
        warnings.warn(
            f"{client.name}: {short(others)} are no images ({', '.join(SUFFIXES)}) and are "
            "left out",
            stacklevel=6,
        )
    return images, labels


def decode(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return an image, (height, width) grey or (height, width, 3); with a size, resized and in colour."""
    from PIL import Image

    with open_file(path) as file:
        try:
            image = Image.open(file, formats=_FORMATS)
            if size is not None:
                return np.asarray(image.resize(size).convert("RGB"))
            if image.mode not in ("L", "RGB"):
                raise LayoutError(
                    f"is of mode {image.mode}; convert it to L (grey) or RGB with Pillow"
                )
            return np.asarray(image)
        except (Image.DecompressionBombError, SyntaxError) as error:
            raise OSError(str(error)) from error
