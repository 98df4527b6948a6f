"""Layouts of files and folders that `load` recognizes by what is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedjax_srp.data import har, hdf5, idx, images, leaf, npz, pfllib
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.parts.registry import Registry


class Layout(NamedTuple):
    """A kind of files, with functions that recognize and read it."""

    about: str  # what the path is and has
    fits: Callable[[Path], bool]
    read: Callable[[Path], RawArrays]


LAYOUTS: Registry[Layout] = Registry(
    "layout",
    {
        "npz": Layout(
            "FILE.npz: x_train, y_train, x_test, y_test, or MedMNIST's train_images, ...",
            npz.is_npz,
            npz.read,
        ),
        "leaf": Layout(
            "FOLDER: LEAF's train/*.json and test/*.json", leaf.is_leaf, leaf.read
        ),
        "har": Layout(
            "FOLDER: UCI HAR's train/subject_train.txt, X_train.txt, ...",
            har.is_har,
            har.read,
        ),
        "pfllib": Layout(
            "FOLDER: PFLlib's train/0.npz, ..., test/0.npz, ...",
            pfllib.is_pfllib,
            pfllib.read,
        ),
        "hdf5": Layout(
            "FILE.h5: groups train/CLIENT and test/CLIENT of x and y (needs h5py); or a "
            "folder of TensorFlow Federated's *_train.h5 and *_test.h5",
            hdf5.is_hdf5,
            hdf5.read,
        ),
        "idx": Layout(
            "FOLDER: train-images-idx3-ubyte, ..., as MNIST and Fashion-MNIST, also .gz",
            idx.is_idx,
            idx.read,
        ),
        "images": Layout(
            "FOLDER: train/CLIENT/CLASS/*.png and test/..., or CLIENT/CLASS/*.png",
            images.is_images,
            images.read,
        ),
    },
)


def find(path: Path) -> Layout | None:
    """Return the layout of a file or folder; None if it has none, or cannot be read."""
    for layout in LAYOUTS.values():
        try:
            if layout.fits(path):
                return layout
        except (OSError, ValueError):  # a NUL in the path
            continue
    return None


def others(data_dir: Path) -> list[Path]:
    """List the files and folders of a layout, without .npz files, which have a name without suffix."""
    found = []
    for path in sorted(data_dir.glob("[!.]*")):
        # of archives, and what tensorflow-datasets extracted from them
        is_other = path.suffix == ".npz" or path.name == "downloads"
        if not is_other and find(path) is not None:
            found.append(path)
    return found
