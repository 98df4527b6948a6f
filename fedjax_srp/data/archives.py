"""Preparing data sets from their original archives, without TensorFlow: `prepare`.

What is written is a data set of tensorflow-datasets like any other, in array_record files, with the names, versions and
features of its catalogue. Archives are looked for by their original names in `<data_dir>/downloads/manual`; those that
are not there are downloaded. Either way their checksums must be those of the catalogue.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedjax_srp._checks import unknown
from fedjax_srp.data import records
from fedjax_srp.data.cache import sweep

NAMES = (*records.IMAGES, "emnist", "sentiment140")
_RETRIES = 2  # of a download: the ten of tensorflow-datasets take minutes to notice that there is no network


def prepare(names: Sequence[str], data_dir: str | Path | None = None, say: Callable[[str], None] = print) -> list[Path]:
    """Writes data sets where `load` finds them.

    Records are written under another name and renamed when they are complete; those of images are then read back, which
    also fills the cache of decoded arrays. What is prepared already is only read.

    Args:
        names: mnist, emnist/balanced (or another of its six), emnist for all six, cifar10, cifar100, sentiment140.
        data_dir: folder of prepared data sets; None for TFDS_DATA_DIR, or ~/tensorflow_datasets.
        say: prints one line.

    Returns:
        The folder of every data set.

    Raises:
        ValueError: in one line: an unknown name, a damaged archive, a folder that cannot be written to, or no network;
            then which files are missing and where to put them, for all data sets at once.
    """
    if not names:
        raise ValueError(f"names: lists no data set; give one or more of {', '.join(NAMES)}")
    for name in names:
        if name not in NAMES:
            raise unknown("data set", name, NAMES)
    emnist = [name for name in records.IMAGES if name.startswith("emnist/")]
    every = dict.fromkeys(part for name in names for part in (emnist if name == "emnist" else [name]))
    place = records.default_dir(None if data_dir is None else Path(data_dir))
    folders, missing, reason = [], {}, ""
    for name in every:
        builder = _builder(name, place)
        wanted = _wanted(builder)
        if wanted.keys() & missing.keys():
            continue  # all of emnist are in one archive
        try:
            folders.append(_prepare(name, builder, place, say))
        except _NoNetworkError as error:
            reason = reason or str(error)
            missing |= {file: wanted[file] for file in _absent(builder, place)}
    if missing:
        files = ", ".join(f"{file} ({info.size:,d} bytes, from {url})" for file, (url, info) in missing.items())
        raise ValueError(f"cannot download ({reason}); put these files into {_manual(place)} by hand: {files}")
    return folders


class _NoNetworkError(Exception):
    """A download failed."""


def _prepare(name: str, builder: Any, data_dir: Path, say: Callable[[str], None]) -> Path:
    folder, begin = Path(builder.data_path), time.monotonic()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if folder.exists():
        records.find(name, data_dir)  # raises unless it was finished
        say(f"{name}: is prepared already in {folder}")
    else:
        _check_archives(builder, data_dir)
        say(f"{name}: preparing {folder}")
        _write(name, builder, data_dir)
    if name in records.IMAGES:
        raw = records.read(name, data_dir)
        count = f"{len(raw.y_train):,d} training and {len(raw.y_test):,d} test examples"
    else:
        count = " and ".join(f"{info.num_examples:,d} {split}" for split, info in builder.info.splits.items())
    say(f"{name}: {count}, {time.monotonic() - begin:.1f} s")
    return folder


def _builder(name: str, data_dir: Path) -> Any:
    from fedjax_srp.data._builders import BUILDERS  # imports tensorflow-datasets

    kind, _, config = name.partition("/")
    more = {"config": config} if config else {}
    try:
        return BUILDERS[kind](data_dir=data_dir, file_format="array_record", **more)
    except Exception as error:  # it reads what is there already
        records.find(name, data_dir)  # says it better
        raise ValueError(f"data_dir={str(data_dir)!r}: {_one_line(error)}; give another data_dir") from error


def _write(name: str, builder: Any, data_dir: Path) -> None:
    """Downloads what is not there and writes the records."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import download_manager, downloader, util

    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        sweep(Path(builder.data_path).parent, "incomplete.*")
        sweep(data_dir / "downloads" / builder.name, "*.tmp.*")
        with _few_words(), contextlib.redirect_stdout(io.StringIO()):  # it looks into _manual(data_dir) first
            builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    except downloader.requests.RequestException as error:
        host = urlsplit(error.request.url).hostname if error.request else "the server"
        raise _NoNetworkError(f"{type(error).__name__} at {host}") from error
    except util.DownloadError as error:
        raise _NoNetworkError(_one_line(error)) from error
    except download_manager.NonMatchingChecksumError as error:
        raise ValueError(
            f"{name}: what was downloaded is another file ({_one_line(error)}); try again later"
        ) from error
    except OSError as error:
        raise ValueError(
            f"data_dir={str(data_dir)!r}: cannot prepare {name} there ({_one_line(error)}); make room or give another "
            "data_dir"
        ) from error


def _manual(data_dir: Path) -> Path:
    return data_dir / "downloads" / "manual"


def _wanted(builder: Any) -> dict[str, tuple[str, Any]]:
    """File name -> its address, and size and checksum, of the archives of a data set."""
    return {info.filename: (url, info) for url, info in builder.url_infos.items()}


def _absent(builder: Any, data_dir: Path) -> list[str]:
    """Archives that are neither in the manual folder nor downloaded."""
    from tensorflow_datasets.core.download import resource

    absent = []
    for file, (url, info) in _wanted(builder).items():
        downloaded = resource.get_dl_fname(url, info.checksum)
        folders = (data_dir / "downloads" / builder.name, data_dir / "downloads")
        if not (_manual(data_dir) / file).is_file() and not any((folder / downloaded).is_file() for folder in folders):
            absent.append(file)
    return absent


def _check_archives(builder: Any, data_dir: Path) -> None:
    """Raises a ValueError of one line if an archive in the manual folder is not the original."""
    for file, (_, info) in _wanted(builder).items():
        path = _manual(data_dir) / file
        if path.is_file():
            size, digest = path.stat().st_size, "another size"
            if size == info.size:
                with path.open("rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if digest != info.checksum:
                found = f"has {size:,d} bytes" if size != info.size else f"has the sha256 {digest[:16]}..."
                right = f"{info.size:,d} bytes" if size != info.size else f"{info.checksum[:16]}..."
                raise ValueError(f"{path}: {found}, the original {right}; delete it and put the original there")


@contextlib.contextmanager
def _few_words() -> Iterator[None]:
    """Bars of tensorflow-datasets on a terminal only, two retries and not a line about each."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    retries, log = downloader.MAX_RETRIES, logging.getLogger("urllib3.connectionpool")
    level = log.level
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    downloader.MAX_RETRIES = _RETRIES
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        downloader.MAX_RETRIES = retries
        tfds.enable_progress_bar()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
