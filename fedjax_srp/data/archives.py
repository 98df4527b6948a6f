"""`prepare`: conversion of original archives to data sets for `load`, without TensorFlow.

tensorflow-datasets finds archives, compares their checksums and writes records.
`_builders` replaces its readers of archives, which need TensorFlow; the download here
replaces its own, which has no timeout.
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

from fedjax_srp.data import records
from fedjax_srp.parts.checks import check_known, checked
from fedjax_srp.results import atomic

NAMES = (*records.IMAGES, "emnist", "sentiment140")
_TIMEOUT = (10.0, 60.0)  # seconds to connect, and between bytes


class _DownloadError(Exception):
    """A failed download: its reason, and a mapping from missing files to their sizes and addresses."""


@checked
def prepare(
    names: str | Sequence[str],
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Write data sets where `load` finds them.

    The result is that of tensorflow-datasets: array_record files, with the names,
    versions and features of its catalogue. Archives are looked up by their original names
    in `<data_dir>/downloads/manual` and among the downloads of tensorflow-datasets;
    missing ones are downloaded. A folder gets its final name when its records are
    complete. Image records are then read back, which also fills the cache of decoded
    arrays. Existing data sets are not changed.

    Args:
        names: one or several of mnist, emnist/balanced (or another of EMNIST's six sets),
            emnist for all six, cifar10, cifar100, sentiment140.
        data_dir: folder to write to, with archives in downloads/manual if there is no
            network; None for TFDS_DATA_DIR, or ~/tensorflow_datasets.
        say: called with each line of progress.

    Returns:
        The folder of each data set.

    Raises:
        ValueError: an unknown name, a damaged archive, a folder that cannot be written
            to, or no network; in the last case the message lists all missing files and
            the folder for them.
    """
    names = [names] if isinstance(names, str) else list(names)
    check_known("data set", names or ["(none)"], NAMES)
    distinct: dict[str, None] = {}
    for name in names:
        if name == "emnist":
            emnist = [part for part in records.IMAGES if part.startswith("emnist/")]
            distinct |= dict.fromkeys(emnist)
        else:
            distinct[name] = None
    root = records.data_folder(data_dir)
    folders: list[Path] = []
    failures: dict[str, _DownloadError] = {}
    for name in distinct:
        kind = name.partition("/")[0]
        try:
            if kind not in failures:  # all sets of emnist are in one archive
                folders.append(_prepare_one(name, root, say))
        except _DownloadError as error:
            failures[kind] = error
    if failures:
        files = []
        for error in failures.values():
            for file, source in error.args[1].items():
                files.append(f"{file} ({source})")
        reason = next(iter(failures.values())).args[0]
        raise ValueError(
            f"cannot download ({reason}); put these files into {_archive_folder(root)} "
            f"by hand: {', '.join(files)}"
        )
    return folders


def _archive_folder(data_dir: Path) -> Path:
    """Return the folder of archives under their original names, downloaded or put there by hand."""
    return data_dir / "downloads" / "manual"


def _prepare_one(name: str, data_dir: Path, say: Callable[[str], None]) -> Path:
    import tensorflow_datasets as tfds

    from fedjax_srp.data._builders import BUILDERS

    begin = time.monotonic()
    kind, _, config = name.partition("/")
    folder = data_dir / name / str(BUILDERS[kind].VERSION)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    is_prepared = folder.exists()
    if is_prepared:
        records.check(name, folder)
        say(f"{name}: already prepared in {folder}")
    else:
        say(f"{name}: preparing {folder}")
    try:
        builder = BUILDERS[kind](
            data_dir=data_dir, file_format="array_record", config=config or None
        )
        if not is_prepared:
            _download_missing(builder, data_dir)
            with _without_bars(), contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare(
                    download_config=tfds.download.DownloadConfig(try_download_gcs=False)
                )
    except _DownloadError:
        raise
    except Exception as error:  # any error about archives or existing files
        raise ValueError(
            f"data_dir={str(data_dir)!r}: cannot prepare {name} there "
            f"({' '.join(str(error).split())}); delete the archive if it is not the "
            "original, free disk space, or give another data_dir"
        ) from error
    if name in records.IMAGES:
        raw = records.read_version(name, folder)
        count = f"{len(raw.y_train):,d} training and {len(raw.y_test):,d} test examples"
    else:
        splits = builder.info.splits.items()
        count = " and ".join(f"{info.num_examples:,d} {split}" for split, info in splits)
    say(f"{name}: {count}, {time.monotonic() - begin:.1f} s")
    if name not in records.IMAGES:
        say(f"{name}: {records.NOT_LOADED}")
    return folder


def _download_missing(builder: Any, data_dir: Path) -> None:
    """Download the archives of a builder that are missing.

    Each is stored in full or not at all.
    """
    import requests  # a dependency of tensorflow-datasets
    from tensorflow_datasets.core.download import resource

    downloads: Any = data_dir / "downloads"
    missing = {}
    for url, info in builder.url_infos.items():
        cached = resource.get_dl_fname(url, info.checksum)
        paths = [
            _archive_folder(data_dir) / info.filename,
            downloads / cached,
            downloads / builder.name / cached,
        ]
        if not paths[0].exists() and not any(map(resource.is_locally_cached, paths[1:])):
            missing[info.filename] = url, info
    for index, (name, (url, info)) in enumerate(missing.items()):
        target = _archive_folder(data_dir) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            atomic.replace({target: functools.partial(_download, url, info)})
        except requests.RequestException as error:
            reason = type(error).__name__
            if type(error) is requests.RequestException:
                reason = str(error)
            if error.response is not None:
                reason = f"status {error.response.status_code}"
            sources = {}
            for file, (address, still_missing) in list(missing.items())[index:]:
                sources[file] = f"{still_missing.size:,d} bytes, from {address}"
            raise _DownloadError(
                f"{reason} at {urlsplit(url).hostname}", sources
            ) from error


def _download(url: str, info: Any, path: Path) -> None:
    import requests

    from fedjax_srp.results.bars import tqdm

    digest = hashlib.sha256()
    with (
        path.open("wb") as file,
        requests.get(url, stream=True, timeout=_TIMEOUT) as response,
        tqdm(
            total=info.size,
            desc=path.name,
            unit="B",
            unit_scale=True,
            disable=None,
            leave=False,
        ) as bar,
    ):
        response.raise_for_status()
        for block in response.iter_content(2**20):
            file.write(block)
            digest.update(block)
            bar.update(len(block))
    if digest.hexdigest() != info.checksum:
        raise requests.RequestException("a file with another checksum")


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Hide the progress bars of tensorflow-datasets, except on a terminal."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.utils import tqdm_utils

    are_shown = getattr(tqdm_utils, "_active", True)  # it has no public name
    tfds.display_progress_bar(are_shown and sys.stderr.isatty())
    try:
        yield
    finally:
        tfds.display_progress_bar(are_shown)
