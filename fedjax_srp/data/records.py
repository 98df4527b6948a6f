"""Data sets prepared by tensorflow-datasets, read from array_record files without TensorFlow or a network.

Records are decoded once and cached (`cache`); then tensorflow-datasets is not even imported.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from fedjax_srp._checks import checked
from fedjax_srp.data.cache import cached, candidate_files
from fedjax_srp.data.raw import RawArrays

_INFO = "dataset_info.json"  # written last


class Images(NamedTuple):
    """A data set of labelled images in the catalogue of tensorflow-datasets."""

    about: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...] = (28, 28)
    first_label: int = 0
    num_cut: int | None = None  # training examples if the catalogue's builder leaves out the rest of the archive


IMAGES = {
    "cifar10": Images("photographs of 10 kinds of things", 50_000, 10_000, 10, (32, 32, 3)),
    "cifar100": Images("photographs of 100 kinds of things", 50_000, 10_000, 100, (32, 32, 3)),
    "emnist/balanced": Images("digits and letters, the same number of each", 112_800, 18_800, 47),
    "emnist/byclass": Images("digits, upper and lower case letters", 697_932, 116_323, 62),
    "emnist/bymerge": Images("digits and letters, alike cases merged", 697_932, 116_323, 47),
    "emnist/digits": Images("digits", 240_000, 40_000, 10),
    "emnist/letters": Images("letters, cases merged", 124_800, 20_800, 26, first_label=1, num_cut=88_800),
    "emnist/mnist": Images("digits, cut as MNIST", 60_000, 10_000, 10),
    "mnist": Images("digits", 60_000, 10_000, 10),
}
NOT_LOADED = (  # of sentiment140
    "is text, which load does not read; read its records with tensorflow_datasets.data_source, or load LEAF's Sent140 "
    "from its folder"
)


def source(name: str) -> Callable[[Path], RawArrays]:
    """Return a source, as in `fedjax_srp.data.SOURCES`, for a data set of `IMAGES`."""
    images = IMAGES[name]

    def read_newest(data_dir: Path) -> RawArrays:
        return read(name, data_dir)

    size = f"{images.num_train:,d} + {images.num_test:,d}"
    read_newest.__doc__ = f"{images.about}, {size} (once prepared: fedjax-srp data prepare {name})"
    return read_newest


@checked
def data_folder(data_dir: str | Path | None) -> Path:
    """The folder of prepared data sets, `~` expanded: the one given, else that of tensorflow-datasets."""
    return expanded(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def expanded(path: str | Path) -> Path:
    """Expand a leading `~` to the home folder, if known."""
    return Path(os.path.expanduser(path))  # unlike Path.expanduser it never raises


def read(name: str, data_dir: Path) -> RawArrays:
    """Return the newest version of a prepared data set.

    Images are as tensorflow-datasets has them, which for EMNIST is transposed; grey ones come without a channel axis.
    Labels count from 0, also those of emnist/letters (1 to 26 in its records).
    """
    return read_version(name, find(name, data_dir))


def read_version(name: str, folder: Path) -> RawArrays:
    """Like `read`, for the version in a folder that passed `check`."""
    images = IMAGES[name]
    files = [path for path in folder.iterdir() if path.is_file()]
    places_of = candidate_files(_data_dir(name, folder), f"{name}/{folder.name}")
    arrays = cached(places_of, files, lambda: _decode(name, folder, images))
    if len(arrays["y_train"]) == images.num_cut:
        few = f"has only {images.num_cut:,d} of {images.num_train:,d} training examples"
        _refuse(name, folder, f"{few}, as tensorflow-datasets itself prepares it")
    first, last = images.first_label, images.first_label + images.num_classes - 1
    for kind in ("train", "test"):
        labels = arrays[f"y_{kind}"]
        if labels.min() < first or labels.max() > last:
            _refuse(name, folder, f"has the {kind} labels {labels.min()}..{labels.max()}, not {first}..{last}")
    y_train, y_test = arrays["y_train"] - first, arrays["y_test"] - first
    return RawArrays(arrays["x_train"], y_train, arrays["x_test"], y_test, num_classes=images.num_classes)


def find(name: str, data_dir: Path) -> Path:
    """Return the folder of the newest version of a prepared data set, or raise with the remedy."""
    versions = [path for path in (data_dir / name).glob("*.*.*") if _number(path.name)]
    if not versions:
        begun = next((data_dir / name).glob("incomplete.*"), None)
        why = f"its preparation did not finish ({begun.name})" if begun else "it has not been prepared"
        raise ValueError(
            f"name={name!r}: {why} in data_dir={str(data_dir)!r}; run fedjax-srp data prepare {name} --data-dir "
            f"{data_dir}, or give data_dir=the folder that has it"
        )
    finished = [path for path in versions if (path / _INFO).is_file()]
    folder = max(finished or versions, key=lambda path: _number(path.name))
    check(name, folder)
    return folder


def check(name: str, folder: Path) -> None:
    """Raise a ValueError of one line unless the folder of a version is complete and has the right format."""
    try:
        info = json.loads((folder / _INFO).read_bytes())
        file_format, splits = info.get("fileFormat", "tfrecord"), {split["name"] for split in info["splits"]}
    except FileNotFoundError:
        _refuse(name, folder, f"lacks {_INFO}, its preparation or a copy did not finish")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        _refuse(name, folder, f"has a damaged {_INFO} ({error})")
    if file_format != "array_record":
        problem = f"was prepared as {file_format} files, which only TensorFlow reads"
        _refuse(name, folder, problem, "prepare it in another folder, or ")
    if not splits >= {"train", "test"}:
        _refuse(name, folder, "lacks train or test records")


def _number(version: str) -> tuple[int, ...]:
    """A version such as 3.0.1 as numbers, () for none."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _refuse(name: str, folder: Path, problem: str, remedy: str = "") -> NoReturn:
    raise ValueError(
        f"name={name!r}: {folder} {problem}; {remedy}delete {folder} and run fedjax-srp data prepare {name} "
        f"--data-dir {_data_dir(name, folder)}"
    )


def _data_dir(name: str, folder: Path) -> Path:
    """The data_dir in which `folder`, of one version of a data set, was found."""
    return folder.parents[name.count("/") + 1]


def _decode(name: str, folder: Path, images: Images) -> dict[str, np.ndarray]:
    """All records of a folder as arrays; a record that fails its checksum raises."""
    import tensorflow_datasets as tfds  # third of a second, only where there is no cache

    try:
        arrays = {}
        builder = cast(Any, tfds.builder_from_directory)(os.fspath(folder))  # these records and no others: no network
        decoders: Any = {"image": cast(Any, tfds.decode.SkipDecoding)()}
        for kind in ("train", "test"):
            source = builder.as_data_source(kind, decoders=decoders)
            arrays[f"x_{kind}"], arrays[f"y_{kind}"] = _decode_split(f"{name} {kind}", source, images.shape)
    except Exception as error:  # any error about a damaged file
        _refuse(name, folder, f"is damaged ({' '.join(str(error).split()) or type(error).__name__})")
    return arrays


def _decode_split(title: str, source: Any, shape: tuple[int, ...], batch: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, *shape) uint8 and labels (n,) int32."""
    from PIL import Image

    from fedjax_srp.bars import tqdm

    images, labels = np.empty((len(source), *shape), np.uint8), np.empty(len(source), np.int32)
    with tqdm(total=len(source), desc=f"decoding {title}", disable=None, leave=False) as bar:  # None: on a terminal
        for begin in range(0, len(source), batch):
            rows = list(range(begin, min(begin + batch, len(source))))
            for row, example in zip(rows, source.__getitems__(rows), strict=True):
                images[row] = np.asarray(Image.open(io.BytesIO(example["image"])))
                labels[row] = example["label"]
            bar.update(len(rows))
    return images, labels
