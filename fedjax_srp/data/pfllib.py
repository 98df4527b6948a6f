"""Folders of PFLlib: train/0.npz, train/1.npz, ... and test/0.npz, ..., a client each.

Each holds an entry `data`, a pickled dict of `x` and `y`, which is read without running
the pickle (`pickles`). Images have their channels first. A text is a pair of a list of
tokens and its length.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.data import pickles
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.rows import LayoutError, of_clients, raw_arrays, reading
from fedjax_srp.parts.files import open_file, read_text

_LAYOUT = "PFLlib's layout, train/0.npz and test/0.npz of an entry data"


def is_pfllib(folder: Path) -> bool:
    """Return True for a folder with train/*.npz."""
    return any(folder.glob("train/[!.]*.npz"))


def read(folder: Path) -> RawArrays:
    """Return the examples of all clients, with the channels of images at the end."""
    parts = []
    for kind in ("train", "test"):
        clients = {}
        for path in sorted(folder.glob(f"{kind}/[!.]*.npz")):
            with reading(folder, path, _LAYOUT), open_file(path) as file:
                clients[path.stem] = _columns(pickles.load_npz(file))
        with reading(folder, folder / kind, _LAYOUT):
            parts.append(of_clients(clients, kind))
    num_classes = None
    config = folder / "config.json"
    if config.exists():
        with reading(folder, config, _LAYOUT):
            num_classes = _num_classes(json.loads(read_text(config)))
    with reading(folder, folder, _LAYOUT):
        return raw_arrays(*parts, num_classes=num_classes, has_channels_last=True)


def _num_classes(config: Any) -> int | None:
    number = config.get("num_classes")
    if number is not None and (not isinstance(number, int) or number < 1):
        raise LayoutError(f"num_classes is {number!r}; give the number of classes")
    return number


def _columns(entries: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    content = entries.get("data", entries)
    if not isinstance(content, dict) or not {"x", "y"} <= set(content):
        raise LayoutError(
            f"has {', '.join(map(str, entries)) or 'no entry'}; give an entry data, a dict "
            "of x and y, or entries x and y"
        )
    x = np.asarray(content["x"])
    if x.dtype == object:
        x = _tokens(x)
    if x.ndim == 4:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    return x, np.asarray(content["y"])


def _tokens(pairs: np.ndarray) -> np.ndarray:
    """Return (n, length) tokens from pairs of a list and its length."""
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise LayoutError(
            "x is no array of numbers, nor pairs of a list of tokens and its length; give "
            "all examples the same shape"
        )
    return np.array(pairs[:, 0].tolist(), np.int64)
