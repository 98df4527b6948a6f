"""Builders of tensorflow-datasets that read the original archives without TensorFlow.

Each subclasses a builder of the catalogue, keeps its name, version and features, and only
reads the archives in another way: by Python's gzip, zipfile and tarfile instead of
TensorFlow's file system, and with Pillow as image encoder. Examples keep their keys, so
they are written in the same order. Archives are not extracted.

Importing this module imports tensorflow-datasets.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
from PIL import Image
from tensorflow_datasets.core import registered
from tensorflow_datasets.datasets.sentiment140 import (
    sentiment140_dataset_builder as sentiment140,
)
from tensorflow_datasets.image_classification import cifar, mnist

Example = tuple[Any, dict[str, Any]]  # key, features


def _encode_png(image: np.ndarray) -> io.BytesIO:
    """Encode an image as a PNG file, since the image feature needs TensorFlow to encode an array."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    stream.seek(0)
    return stream


def _decode_idx(data: bytes) -> np.ndarray:
    """Decode MNIST's IDX format: the number of axes in the fourth byte, their lengths, then uint8 entries."""
    (num_axes,) = struct.unpack(">xxxB", data[:4])
    shape = struct.unpack(f">{num_axes}I", data[4 : 4 + 4 * num_axes])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * num_axes).reshape(shape)


def _labelled_images(images: bytes, labels: bytes) -> Iterator[Example]:
    for key, (image, label) in enumerate(
        zip(_decode_idx(images), _decode_idx(labels), strict=True)
    ):
        yield key, {"image": _encode_png(image), "label": int(label)}


with registered.skip_registration():

    class MNIST(mnist.MNIST):
        """MNIST in four gzip files."""

        # locates the checksums and is written to the metadata
        __module__ = mnist.__name__

        def _split_generators(self, dl_manager: Any) -> Any:
            splits = {}
            for split, prefix in (("train", "train"), ("test", "t10k")):
                images = f"{prefix}-images-idx3-ubyte.gz"
                labels = f"{prefix}-labels-idx1-ubyte.gz"
                files = [urljoin(self.URL, images), urljoin(self.URL, labels)]
                paths = map(Path, dl_manager.download(files))
                contents = [gzip.decompress(path.read_bytes()) for path in paths]
                splits[split] = _labelled_images(*contents)
            return splits

    class EMNIST(mnist.EMNIST):
        """EMNIST in one zip of gzip files.

        All letters are read, the original builder omits 42,000 of them.
        """

        __module__ = mnist.__name__

        def _split_generators(self, dl_manager: Any) -> Any:
            path = dl_manager.download(self.URL)
            return {
                split: self._examples(Path(path), split) for split in ("train", "test")
            }

        def _examples(self, path: Path, split: str) -> Iterator[Example]:
            config: Any = self.builder_config
            stem = f"gzip/emnist-{config.name}-{split}"
            with zipfile.ZipFile(path) as archive:
                images = archive.read(f"{stem}-images-idx3-ubyte.gz")
                labels = archive.read(f"{stem}-labels-idx1-ubyte.gz")
            yield from _labelled_images(gzip.decompress(images), gzip.decompress(labels))

    class Cifar10(cifar.Cifar10):
        """CIFAR-10 in a tar of binary files.

        A row is one byte per label and 3072 of an image, channels first.
        """

        __module__ = cifar.__name__

        def _split_generators(self, dl_manager: Any) -> Any:
            layout = self._cifar_info
            data: dict[str, bytes] = {}
            with tarfile.open(dl_manager.download(layout.url)) as archive:
                for member in archive:
                    if file := archive.extractfile(member):  # None for a folder
                        data[member.name.removeprefix(layout.prefix)] = file.read()
            features: Any = self.info.features
            for key, name in zip(layout.label_keys, layout.label_files, strict=True):
                lines = data[name].decode().splitlines()
                features[key].names = [line for line in lines if line]
            files = {"train": layout.train_files, "test": layout.test_files}
            splits = {}
            for split, names in files.items():
                rows = b"".join(data[name] for name in names)
                splits[split] = self._examples(f"{split}_", rows, layout.label_keys)
            return splits

        def _examples(
            self, prefix: str, data: bytes, label_keys: list[str]
        ) -> Iterator[Example]:
            rows = np.frombuffer(data, np.uint8).reshape(-1, len(label_keys) + 3072)
            for key, row in enumerate(rows):
                labels = row[: len(label_keys)].tolist()
                image = row[len(label_keys) :].reshape(3, 32, 32).transpose(1, 2, 0)
                features = dict(zip(label_keys, labels, strict=True))
                features["id"] = f"{prefix}{key:05d}"
                features["image"] = _encode_png(np.ascontiguousarray(image))
                yield key, features

    class Cifar100(Cifar10, cifar.Cifar100):  # pyright: ignore[reportIncompatibleMethodOverride]
        """CIFAR-100, with a coarse label before the label."""

        __module__ = cifar.__name__

    class Sentiment140(sentiment140.Builder):
        """Sentiment140 in a zip of two CSV files without headers."""

        __module__ = sentiment140.__name__

        def _split_generators(self, dl_manager: Any) -> Any:
            path = Path(dl_manager.download(sentiment140._DOWNLOAD_URL))
            tables = {
                "train": "training.1600000.processed.noemoticon.csv",
                "test": "testdata.manual.2009.06.14.csv",
            }
            return {split: self._examples(path, table) for split, table in tables.items()}

        def _examples(self, path: Path, table: str) -> Iterator[Example]:
            with zipfile.ZipFile(path) as archive, archive.open(table) as file:
                for index, row in enumerate(
                    csv.reader(codecs.iterdecode(file, "ISO-8859-1"))
                ):
                    polarity, tweet, date, query, user, text = row
                    features = {
                        "polarity": int(polarity),
                        "date": date,
                        "query": query,
                        "user": user,
                        "text": text,
                    }
                    yield f"{index}_{tweet}", features


BUILDERS = {
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "emnist": EMNIST,
    "mnist": MNIST,
    "sentiment140": Sentiment140,
}
