"""Data sets that tensorflow-datasets prepared, read from its array_record files without TensorFlow or a network.

The records of a data set are decoded once; after that its arrays are memory-mapped (`cache`), and tensorflow-datasets
is not even imported.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fedjax_srp._checks import checked
from fedjax_srp.data.cache import cached, places
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
    num_cut: int | None = None  # training examples where the catalogue's own builder leaves out the rest of the archive


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


def sources() -> dict[str, Callable[[Path], RawArrays]]:
    """A source, as in `fedjax_srp.data.SOURCES`, for every data set of `IMAGES`."""
    return {name: _source(name, images) for name, images in IMAGES.items()}


def _source(name: str, images: Images) -> Callable[[Path], RawArrays]:
    def source(data_dir: Path) -> RawArrays:
        return read(name, data_dir)

    size = f"{images.num_train:,d} + {images.num_test:,d}"
    source.__doc__ = f"{images.about}, {size} (once prepared: fedjax-srp data prepare {name})"
    return source


@checked
def data_folder(data_dir: str | Path | None) -> Path:
    """The folder of prepared data sets, `~` expanded: the one given, else that of tensorflow-datasets."""
    return expanded(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def expanded(path: str | Path) -> Path:
    """A path whose leading `~` is the home folder, where that is known."""
    return Path(os.path.expanduser(path))  # unlike Path.expanduser it never raises


def read(name: str, data_dir: Path) -> RawArrays:
    """The newest version of a prepared data set.

    Images are as tensorflow-datasets has them, which for EMNIST is transposed; grey ones come without a channel axis.
    Labels count from 0, also those of emnist/letters (1 to 26 in its records).

    Args:
        name: one of `IMAGES`.
        data_dir: folder of prepared data sets.

    Raises:
        ValueError: in one line: not prepared, unfinished, damaged, or letters that lack a part.
    """
    return read_version(name, find(name, data_dir))


def read_version(name: str, folder: Path) -> RawArrays:
    """Like `read`, of the version in a folder that passed `check`."""
    data_dir, images = _data_dir(name, folder), IMAGES[name]
    files = [path for path in folder.iterdir() if path.is_file()]
    arrays = cached(places(data_dir, f"{name}/{folder.name}"), files, lambda: _decode(name, folder, images))
    labels = {kind: arrays[f"y_{kind}"] - images.first_label for kind in ("train", "test")}
    for kind, numbers in labels.items():
        if numbers.min() < 0 or numbers.max() >= images.num_classes:
            first, last = images.first_label, images.first_label + images.num_classes - 1
            raise ValueError(
                f"name={name!r}: {folder} has the {kind} labels {numbers.min() + first}..{numbers.max() + first}, not "
                f"{first}..{last}; {_again(name, folder)}"
            )
    if len(labels["train"]) == images.num_cut:
        raise ValueError(
            f"name={name!r}: {folder} has only {images.num_cut:,d} of {images.num_train:,d} training examples, as "
            f"tensorflow-datasets itself prepares it; {_again(name, folder)}"
        )
    return RawArrays(
        arrays["x_train"], labels["train"], arrays["x_test"], labels["test"], num_classes=images.num_classes
    )


def find(name: str, data_dir: Path) -> Path:
    """The folder of the newest version of a prepared data set.

    Raises:
        ValueError: in one line: there is none, it was not finished, or has another format.
    """
    prepare = f"run fedjax-srp data prepare {name} --data-dir {data_dir}"
    if not data_dir.is_dir():
        raise ValueError(
            f"name={name!r}: data_dir={str(data_dir)!r} is no folder; give data_dir=the folder that has it, or "
            f"{prepare}"
        )
    versions = [path for path in (data_dir / name).glob("*.*.*") if _number(path.name)]
    if not versions:
        begun = next((data_dir / name).glob("incomplete.*"), None)
        why = f"its preparation did not finish ({begun.name})" if begun else "it has not been prepared"
        raise ValueError(
            f"name={name!r}: {why} in data_dir={str(data_dir)!r}; {prepare}, or give data_dir=the folder that has it"
        )
    finished = [path for path in versions if (path / _INFO).is_file()]
    folder = max(finished or versions, key=lambda path: _number(path.name))
    check(name, folder)
    return folder


def check(name: str, folder: Path) -> None:
    """Raises a ValueError of one line unless the folder of a version is complete and has the format that is read."""
    if not (folder / _INFO).is_file():
        raise ValueError(
            f"name={name!r}: {folder} lacks {_INFO}, its preparation or a copy did not finish; {_again(name, folder)}"
        )
    try:
        info = json.loads((folder / _INFO).read_bytes())
        file_format, splits = info.get("fileFormat", "tfrecord"), {split["name"] for split in info["splits"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"name={name!r}: {folder / _INFO} is damaged ({error}); {_again(name, folder)}") from error
    if file_format != "array_record":
        raise ValueError(
            f"name={name!r}: {folder} was prepared as {file_format} files, which only TensorFlow reads; "
            f"prepare it as array_record in another folder, e.g. with fedjax-srp data prepare {name} --data-dir OTHER"
        )
    if not splits >= {"train", "test"}:
        raise ValueError(f"name={name!r}: {folder} lacks train or test records; {_again(name, folder)}")


def _number(version: str) -> tuple[int, ...]:
    """3.0.1 as numbers, () for what is no version."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _again(name: str, folder: Path) -> str:
    """The remedy for records that cannot be trusted."""
    return f"delete {folder} and run fedjax-srp data prepare {name} --data-dir {_data_dir(name, folder)}"


def _data_dir(name: str, folder: Path) -> Path:
    """Where `folder`, of one version of a data set, was found."""
    return folder.parents[name.count("/") + 1]


def _decode(name: str, folder: Path, images: Images) -> dict[str, np.ndarray]:
    """All records of a folder as arrays; a record that fails its checksum raises."""
    import tensorflow_datasets as tfds  # third of a second, only where there is no cache

    try:
        builder = cast(Any, tfds.builder_from_directory)(os.fspath(folder))  # these records and no others: no network
        decoders: Any = {"image": cast(Any, tfds.decode.SkipDecoding)()}
        arrays: dict[str, np.ndarray] = {}
        for kind in ("train", "test"):
            source = builder.as_data_source(kind, decoders=decoders)
            arrays[f"x_{kind}"], arrays[f"y_{kind}"] = _decode_split(f"{name} {kind}", source, images.shape)
    except Exception as error:  # whatever the reader says about a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"name={name!r}: {folder} is damaged ({reason}); {_again(name, folder)}") from error
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
                image = np.asarray(Image.open(io.BytesIO(example["image"])))
                if image.shape != shape:
                    raise ValueError(f"image {row} has shape {image.shape}, not {shape}")
                images[row], labels[row] = image, example["label"]
            bar.update(len(rows))
    return images, labels
