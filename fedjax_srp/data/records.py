"""Data sets prepared by tensorflow-datasets, read from array_record files without TensorFlow or a network.

Records are decoded once and cached (`cache`). Reading the cache does not import
tensorflow-datasets.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from fedjax_srp.data.cache import cached
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.parts.checks import checked, short
from fedjax_srp.parts.files import MALFORMED

_INFO = "dataset_info.json"  # written last, so a folder without it is incomplete
_FEATURES = "features.json"
_CLASS_KEYS = ("pythonClassName", "python_class_name")  # both are read
# that features of `IMAGES` have; tensorflow-datasets imports the module of any other that is
# named
_CLASSES = (
    "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "tensorflow_datasets.core.features.image_feature.Image",
    "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
    "tensorflow_datasets.core.features.text_feature.Text",
)
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


IMAGES = {
    "cifar10": Images(
        "photographs of 10 kinds of things", 50_000, 10_000, 10, (32, 32, 3)
    ),
    "cifar100": Images(
        "photographs of 100 kinds of things", 50_000, 10_000, 100, (32, 32, 3)
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
    "mnist": Images("digits", 60_000, 10_000, 10),
}
NOT_LOADED = (  # of sentiment140
    "is text, which load reads only in LEAF's layout; read its records with "
    "tensorflow_datasets.data_source, or load the folder of LEAF's Sent140"
)


def source(name: str) -> Callable[[Path], RawArrays]:
    """Return a source, as in `fedjax_srp.data.SOURCES`, for a data set of `IMAGES`."""
    images = IMAGES[name]

    def read_newest(data_dir: Path) -> RawArrays:
        return read(name, data_dir)

    size = f"{images.num_train:,d} + {images.num_test:,d}"
    read_newest.__doc__ = (
        f"{images.about}, {size} (once prepared: fedjax-srp data prepare {name})"
    )
    return read_newest


@checked
def data_folder(data_dir: str | Path | None) -> Path:
    """Return the folder of prepared data sets, `~` expanded: the given one, else that of tensorflow-datasets."""
    return expand_user(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )


def expand_user(path: str | Path) -> Path:
    """Expand a leading `~` to the home folder, if known."""
    return Path(os.path.expanduser(path))  # unlike Path.expanduser it never raises


def read(name: str, data_dir: Path) -> RawArrays:
    """Return the newest version of a prepared data set.

    Images are as in tensorflow-datasets, so EMNIST's are transposed; grey ones have no
    channel axis. Labels start at 0, also those of emnist/letters (1 to 26 in its
    records).
    """
    return read_version(name, find(name, data_dir))


def read_version(name: str, folder: Path) -> RawArrays:
    """Like `read`, for the version in a folder that passed `check`."""
    images = IMAGES[name]
    files = [path for path in folder.iterdir() if path.is_file()]
    cache_name = f"{name}/{folder.name}"
    arrays = cached(
        _data_dir(name, folder), cache_name, files, lambda: _decode(name, folder, images)
    )
    if len(arrays["y_train"]) == images.num_cut:
        few = f"has only {images.num_cut:,d} of {images.num_train:,d} training examples"
        _raise_damaged(name, folder, f"{few}, as tensorflow-datasets itself prepares it")
    first = images.first_label
    last = first + images.num_classes - 1
    for kind in ("train", "test"):
        labels = arrays[f"y_{kind}"]
        if labels.min() < first or labels.max() > last:
            _raise_damaged(
                name,
                folder,
                f"has the {kind} labels {labels.min()}..{labels.max()}, not "
                f"{first}..{last}",
            )
    return RawArrays(
        arrays["x_train"],
        arrays["y_train"] - first,
        arrays["x_test"],
        arrays["y_test"] - first,
        num_classes=images.num_classes,
    )


def find(name: str, data_dir: Path) -> Path:
    """Return the folder of the newest version of a prepared data set, or raise a ValueError with the remedy."""
    versions = [
        path for path in (data_dir / name).glob("*.*.*") if _version_numbers(path.name)
    ]
    if not versions:
        incomplete = next((data_dir / name).glob("incomplete.*"), None)
        reason = "it has not been prepared"
        if incomplete:
            reason = f"its preparation did not finish ({incomplete.name})"
        raise ValueError(
            f"name={name!r}: {reason} in data_dir={str(data_dir)!r}; run fedjax-srp data "
            f"prepare {name} --data-dir {data_dir}, or give data_dir=the folder that has "
            "it"
        )
    complete = [path for path in versions if (path / _INFO).is_file()]
    folder = max(complete or versions, key=lambda path: _version_numbers(path.name))
    check(name, folder)
    return folder


def check(name: str, folder: Path) -> None:
    """Raise a ValueError of one line unless the folder of a version is complete and has the right format."""
    try:
        info = json.loads((folder / _INFO).read_bytes())
        file_format = info.get("fileFormat", "tfrecord")
        splits = {split["name"] for split in info["splits"]}
    except FileNotFoundError:
        _raise_damaged(
            name,
            folder,
            f"lacks {_INFO}, because its preparation or a copy did not finish",
        )
    except (OSError, *MALFORMED) as error:
        _raise_damaged(name, folder, f"has a damaged {_INFO} ({error})")
    if file_format != "array_record":
        problem = f"was prepared as {file_format} files, which only TensorFlow reads"
        _raise_damaged(name, folder, problem, "prepare it in another folder, or ")
    if not splits >= {"train", "test"}:
        _raise_damaged(name, folder, "lacks train or test records")


def _check_features(name: str, folder: Path) -> None:
    """Raise a ValueError of one line if tensorflow-datasets would import a class that no image data set has."""
    for file in (_INFO, _FEATURES):  # the first may have features too
        try:
            content = json.loads((folder / file).read_bytes())
            foreign = [each for each in _class_names(content) if each not in _CLASSES]
            is_old = file == _FEATURES and "type" in content
        except FileNotFoundError:
            _raise_damaged(name, folder, f"lacks {file}, because a copy did not finish")
        except (
            OSError,
            UnicodeDecodeError,
            json.JSONDecodeError,
            TypeError,
            RecursionError,
        ) as error:
            _raise_damaged(name, folder, f"has a damaged {file} ({error})")
        if foreign:
            problem = f"has a {file} that names the Python class {short(foreign[0])}, which is not imported"
            _raise_damaged(name, folder, problem)
        if is_old:
            _raise_damaged(
                name, folder, f"has a {file} of an old version of tensorflow-datasets"
            )


def _class_names(features: Any) -> Iterator[Any]:
    """Yield what the features in a JSON value, at any depth, name as their Python classes."""
    if isinstance(features, list):
        for inner in features:
            yield from _class_names(inner)
    elif isinstance(features, dict):
        for key, inner in features.items():
            if key in _CLASS_KEYS:
                yield inner
            yield from _class_names(inner)


def _version_numbers(version: str) -> tuple[int, ...]:
    """Parse a version such as 3.0.1; () for other text."""
    parts = version.split(".")
    if not all(map(str.isdecimal, parts)):
        return ()
    return tuple(map(int, parts))


def _raise_damaged(name: str, folder: Path, problem: str, remedy: str = "") -> NoReturn:
    raise ValueError(
        f"name={name!r}: {folder} {problem}; {remedy}delete {folder} and run fedjax-srp "
        f"data prepare {name} --data-dir {_data_dir(name, folder)}"
    )


def _data_dir(name: str, folder: Path) -> Path:
    """Return the data_dir of `folder`, which has one version of a data set."""
    return folder.parents[name.count("/") + 1]


def _decode(name: str, folder: Path, images: Images) -> dict[str, np.ndarray]:
    """Decode all records of a folder.

    A record that fails its checksum raises a ValueError.
    """
    import tensorflow_datasets as tfds  # takes a third of a second, and is not needed if there is a cache

    _check_features(name, folder)
    try:
        arrays = {}
        # reads these records, without a network
        builder = cast(Any, tfds.builder_from_directory)(os.fspath(folder))
        decoders: Any = {"image": cast(Any, tfds.decode.SkipDecoding)()}
        for kind in ("train", "test"):
            source = builder.as_data_source(kind, decoders=decoders)
            arrays[f"x_{kind}"], arrays[f"y_{kind}"] = _decode_split(
                f"{name} {kind}", source, images.shape
            )
    except Exception as error:  # any error about a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        _raise_damaged(name, folder, f"is damaged ({reason})")
    return arrays


def _decode_split(
    title: str, source: Any, shape: tuple[int, ...], batch: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, *shape) uint8 and labels (n,) int32."""
    from PIL import Image

    from fedjax_srp.results.bars import tqdm

    images = np.empty((len(source), *shape), np.uint8)
    labels = np.empty(len(source), np.int32)
    with tqdm(
        total=len(source), desc=f"decoding {title}", disable=None, leave=False
    ) as bar:
        for begin in range(0, len(source), batch):
            rows = list(range(begin, min(begin + batch, len(source))))
            for row, example in zip(rows, source.__getitems__(rows), strict=True):
                file = io.BytesIO(example["image"])
                images[row] = np.asarray(Image.open(file, formats=_FORMATS))
                labels[row] = example["label"]
            bar.update(len(rows))
    return images, labels
