"""Data sets prepared by tensorflow-datasets, read from array_record files without TensorFlow or a network.

Records are decoded once and cached (`cache`). Reading the cache does not import
tensorflow-datasets.
"""

from __future__ import annotations

import importlib
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.data.cache import cached
from fedjax_srp.data.raw import LoadError, RawArrays
from fedjax_srp.parts.checks import check_path, checked
from fedjax_srp.parts.libraries import needed_by

_INFO = "dataset_info.json"  # written last, so a folder without it is incomplete
_BATCH = 1000  # images read at once
_FORMATS = ("PNG",)  # of images in records; Pillow's readers of others may start programs


class Images(NamedTuple):
    """A data set of labelled images in the catalogue of tensorflow-datasets."""

    about: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...] = (28, 28)
    first_label: int = 0
    # training examples that the catalogue's builder reads, if it does not read all
    num_cut: int | None = None
    version: str = "3.1.0"


IMAGES = {
    "cifar10": Images(
        "photographs of 10 kinds of things",
        50_000,
        10_000,
        10,
        (32, 32, 3),
        version="3.0.2",
    ),
    "cifar100": Images(
        "photographs of 100 kinds of things",
        50_000,
        10_000,
        100,
        (32, 32, 3),
        version="3.0.2",
    ),
    "emnist/balanced": Images(
        "digits and letters, the same number of each", 112_800, 18_800, 47
    ),
    "emnist/byclass": Images(
        "digits, upper and lower case letters", 697_932, 116_323, 62
    ),
    "emnist/bymerge": Images(
        "digits and letters, cases merged where they look alike", 697_932, 116_323, 47
    ),
    "emnist/digits": Images("digits", 240_000, 40_000, 10),
    "emnist/letters": Images(
        "letters, cases merged", 124_800, 20_800, 26, first_label=1, num_cut=88_800
    ),
    "emnist/mnist": Images("digits, cut as MNIST", 60_000, 10_000, 10),
    "mnist": Images("digits", 60_000, 10_000, 10, version="3.0.1"),
}


@checked
def data_folder(data_dir: str | Path | None) -> Path:
    """Return the folder of prepared data sets, `~` expanded: the given one, else that of tensorflow-datasets."""
    folder = expand_user(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )
    check_path("data_dir", folder)
    return folder


def expand_user(path: str | Path) -> Path:
    """Expand a leading `~` to the home folder, if known."""
    return Path(os.path.expanduser(path))  # unlike Path.expanduser it never raises


def read(name: str, data_dir: Path) -> RawArrays:
    """Return a data set that tensorflow-datasets prepared; labels start at 0."""
    images = IMAGES[name]
    folder = find(name, data_dir)
    files = [path for path in folder.iterdir() if path.is_file()]
    cache_name = f"{name}/{images.version}"
    arrays = cached(data_dir, cache_name, files, lambda: _decode(name, data_dir))
    return RawArrays(**arrays, num_classes=images.num_classes)  # pyright: ignore[reportArgumentType]


def find(name: str, data_dir: Path) -> Path:
    """Return the folder of a data set's records, or raise a ValueError with the remedy."""
    folder = data_dir / name / IMAGES[name].version
    problem = ""
    if not folder.is_dir():
        problem = "it has not been prepared"
        if incomplete := next((data_dir / name).glob("incomplete.*"), None):
            problem = f"its preparation did not finish ({incomplete.name})"
    elif not (folder / _INFO).is_file():
        problem = (
            f"{str(folder)!r} lacks {_INFO}: its preparation or a copy did not finish"
        )
    elif not any(folder.glob("*.array_record*")):
        problem = f"{str(folder)!r} has no array_record files, and others need TensorFlow"
    if problem:
        raise LoadError(
            "name",
            name,
            f": {problem} (data_dir={str(data_dir)!r}); run fedjax-srp data prepare {name} "
            f"--data-dir {str(data_dir)!r}, or give data_dir=the folder that has it",
        )
    return folder


def _decode(name: str, data_dir: Path) -> dict[str, np.ndarray]:
    """Decode all records of a data set.

    Features come from the catalogue: no class that a file names is imported. A record
    that fails its checksum raises a ValueError.
    """
    # takes a second, and is not needed if there is a cache
    with needed_by(f"data set {name!r}", "tensorflow-datasets array-record"):
        import tensorflow_datasets as tfds

        importlib.import_module("array_record")  # by which it reads

    images = IMAGES[name]
    arrays = {}
    try:
        for kind in ("train", "test"):
            source = tfds.data_source(
                name,
                split=kind,
                data_dir=data_dir,
                download=False,
                decoders={"image": tfds.decode.SkipDecoding()},
            )
            x, y = _decode_split(f"{name} {kind}", source, images.shape)
            if len(y) == images.num_cut:
                raise ValueError(
                    f"it has only {len(y):,d} of {images.num_train:,d} training examples, "
                    "as tensorflow-datasets itself prepares it"
                )
            labels = y - images.first_label
            if labels.min() < 0 or labels.max() >= images.num_classes:
                raise ValueError(f"it has the {kind} labels {y.min()}..{y.max()}")
            arrays[f"x_{kind}"] = x
            arrays[f"y_{kind}"] = labels
    except Exception as error:  # any error about a damaged file
        folder = str(find(name, data_dir))
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LoadError(
            "name",
            name,
            f": {folder!r} is damaged ({reason}); delete {folder!r} and run fedjax-srp data "
            f"prepare {name} --data-dir {str(data_dir)!r}",
        ) from error
    return arrays


def _decode_split(
    title: str, source: Any, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, *shape) uint8 and labels (n,) int32."""
    from PIL import Image

    from fedjax_srp.results.bars import tqdm

    images = np.empty((len(source), *shape), np.uint8)
    labels = np.empty(len(source), np.int32)
    with tqdm(
        total=len(source), desc=f"decoding {title}", disable=None, leave=False
    ) as bar:
        for begin in range(0, len(source), _BATCH):
            rows = list(range(begin, min(begin + _BATCH, len(source))))
            for row, example in zip(rows, source.__getitems__(rows), strict=True):
                file = io.BytesIO(example["image"])
                images[row] = np.asarray(Image.open(file, formats=_FORMATS))
                labels[row] = example["label"]
            bar.update(len(rows))
    return images, labels
