"""Preparing data sets from their original archives, without TensorFlow: `prepare`.

tensorflow-datasets finds archives, compares their checksums and writes records; the readers of the archives
(`_builders`) replace its own, which need TensorFlow, and the download its own, which has no time limit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedjax_srp import storage
from fedjax_srp._checks import check_known, checked
from fedjax_srp.data import records

NAMES = (*records.IMAGES, "emnist", "sentiment140")
_TIMEOUT = (10.0, 60.0)  # seconds to connect, and without a byte


class _MissingError(Exception):
    """A failed download: the reason, and the missing files with size and address."""


@checked
def prepare(
    names: str | Sequence[str], data_dir: str | Path | None = None, say: Callable[[str], None] = print
) -> list[Path]:
    """Write data sets where `load` finds them.

    They are data sets of tensorflow-datasets, in array_record files, with the names, versions and features of its
    catalogue. Archives are searched by their original names in `<data_dir>/downloads/manual` and among the downloads
    of tensorflow-datasets; missing ones are downloaded. Complete records are renamed; those of images are then read
    back, which also fills the cache of decoded arrays. Prepared data sets are only read.

    Args:
        names: one or several of mnist, emnist/balanced (or another of its six), emnist for all six, cifar10, cifar100,
            sentiment140.
        data_dir: folder of prepared data sets; None for TFDS_DATA_DIR, or ~/tensorflow_datasets.
        say: prints one line.

    Returns:
        The folder of every data set.

    Raises:
        ValueError: an unknown name, a damaged archive, a folder that cannot be written to, or no network; then the
            message lists all missing files and their folder.
    """
    names = [names] if isinstance(names, str) else list(names)
    check_known("data set", names or ["(none)"], NAMES)
    emnist = [name for name in records.IMAGES if name.startswith("emnist/")]
    every = dict.fromkeys(part for name in names for part in (emnist if name == "emnist" else [name]))
    place = records.data_folder(data_dir)
    folders: list[Path] = []
    failures: dict[str, _MissingError] = {}
    for name in every:
        kind = name.partition("/")[0]
        try:
            if kind not in failures:  # all of emnist are in one archive
                folders.append(_prepare(name, place, say))
        except _MissingError as error:
            failures[kind] = error
    if failures:
        files = ", ".join(f"{file} ({source})" for error in failures.values() for file, source in error.args[1].items())
        reason = next(iter(failures.values())).args[0]
        raise ValueError(f"cannot download ({reason}); put these files into {_by_hand(place)} by hand: {files}")
    return folders


def _by_hand(data_dir: Path) -> Path:
    """The folder for archives under their own names, downloaded or put there by hand."""
    return data_dir / "downloads" / "manual"


def _prepare(name: str, data_dir: Path, say: Callable[[str], None]) -> Path:
    import tensorflow_datasets as tfds

    from fedjax_srp.data._builders import BUILDERS

    begin, (kind, _, config) = time.monotonic(), name.partition("/")
    folder = data_dir / name / str(BUILDERS[kind].VERSION)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    is_prepared = folder.exists()
    if is_prepared:
        records.check(name, folder)
    say(f"{name}: is prepared already in {folder}" if is_prepared else f"{name}: preparing {folder}")
    try:
        more = {"config": config} if config else {}
        builder = BUILDERS[kind](data_dir=data_dir, file_format="array_record", **more)
        if not is_prepared:
            _fetch(builder, data_dir)
            with _few_words(), contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    except _MissingError:
        raise
    except Exception as error:  # any error about archives or existing files
        raise ValueError(
            f"data_dir={str(data_dir)!r}: cannot prepare {name} there ({' '.join(str(error).split())}); delete a file "
            "that is not the original, make room, or give another data_dir"
        ) from error
    if name in records.IMAGES:
        raw = records.read_version(name, folder)
        count = f"{len(raw.y_train):,d} training and {len(raw.y_test):,d} test examples"
    else:
        count = " and ".join(f"{info.num_examples:,d} {split}" for split, info in builder.info.splits.items())
    say(f"{name}: {count}, {time.monotonic() - begin:.1f} s")
    if name not in records.IMAGES:
        say(f"{name}: {records.NOT_LOADED}")
    return folder


def _fetch(builder: Any, data_dir: Path) -> None:
    """Download the missing archives, each in full or not at all."""
    import requests  # tensorflow-datasets needs it
    from tensorflow_datasets.core.download import resource

    downloads: Any = data_dir / "downloads"
    absent = {}
    for url, info in builder.url_infos.items():
        file = resource.get_dl_fname(url, info.checksum)
        if not (_by_hand(data_dir) / info.filename).exists() and not any(
            resource.is_locally_cached(downloads / place / file) for place in ("", builder.name)
        ):
            absent[info.filename] = url, info
    for place, (name, (url, info)) in enumerate(absent.items()):
        target = _by_hand(data_dir) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            storage.replace({target: functools.partial(_download, url, info)})
        except requests.RequestException as error:
            what = type(error).__name__ if error.response is None else f"status {error.response.status_code}"
            left = list(absent.items())[place:]
            sources = {file: f"{info.size:,d} bytes, from {address}" for file, (address, info) in left}
            raise _MissingError(f"{what} at {urlsplit(url).hostname}", sources) from error


def _download(url: str, info: Any, path: Path) -> None:
    import requests

    from fedjax_srp.bars import tqdm

    digest = hashlib.sha256()
    with (
        path.open("wb") as file,
        requests.get(url, stream=True, timeout=_TIMEOUT) as response,
        tqdm(total=info.size, desc=path.name, unit="B", unit_scale=True, disable=None, leave=False) as bar,
    ):
        response.raise_for_status()
        for block in response.iter_content(2**20):
            file.write(block)
            digest.update(block)
            bar.update(len(block))
    if digest.hexdigest() != info.checksum:
        raise requests.exceptions.ContentDecodingError("the server sends something else")


@contextlib.contextmanager
def _few_words() -> Iterator[None]:
    """Show bars of tensorflow-datasets only on a terminal."""
    import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        yield
    finally:
        tfds.enable_progress_bar()
