"""Preparing data sets from their original archives, without TensorFlow: `prepare`.

What is written is a data set of tensorflow-datasets like any other, in array_record files, with the names, versions and
features of its catalogue. Archives are looked for by their original names in `<data_dir>/downloads/manual`; those that
are not there, nor where tensorflow-datasets keeps its downloads, are downloaded to it. Wherever they come from, their
checksums must be those of the catalogue.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_srp._checks import checked, unknown
from fedjax_srp.data import records
from fedjax_srp.data._downloads import MissingError, by_hand, fetch
from fedjax_srp.data.cache import sweep

NAMES = (*records.IMAGES, "emnist", "sentiment140")


@checked
def prepare(
    names: str | Sequence[str], data_dir: str | Path | None = None, say: Callable[[str], None] = print
) -> list[Path]:
    """Writes data sets where `load` finds them.

    Records are written under another name and renamed when they are complete; those of images are then read back, which
    also fills the cache of decoded arrays. What is prepared already is only read.

    Args:
        names: one or several of mnist, emnist/balanced (or another of its six), emnist for all six, cifar10, cifar100,
            sentiment140.
        data_dir: folder of prepared data sets; None for TFDS_DATA_DIR, or ~/tensorflow_datasets.
        say: prints one line.

    Returns:
        The folder of every data set.

    Raises:
        ValueError: in one line: an unknown name, a damaged archive, a folder that cannot be written to, or no network;
            then which files are missing and where to put them, for all data sets at once.
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise ValueError(f"names: lists no data set; give one or more of {', '.join(NAMES)}")
    for name in names:
        if name not in NAMES:
            raise unknown("data set", name, NAMES)
    emnist = [name for name in records.IMAGES if name.startswith("emnist/")]
    every = dict.fromkeys(part for name in names for part in (emnist if name == "emnist" else [name]))
    place = records.data_folder(data_dir)
    folders: list[Path] = []
    failures: dict[str, MissingError] = {}
    for name in every:
        kind = name.partition("/")[0]
        if kind in failures:
            continue  # all of emnist are in one archive
        try:
            folders.append(_prepare(name, place, say))
        except MissingError as error:
            failures[kind] = error
    if failures:
        files = ", ".join(
            f"{archive.file} ({archive.size:,d} bytes, from {archive.url})"
            for error in failures.values()
            for archive in error.archives
        )
        reason = next(iter(failures.values()))
        raise ValueError(f"cannot download ({reason}); put these files into {by_hand(place)} by hand: {files}")
    return folders


def _prepare(name: str, data_dir: Path, say: Callable[[str], None]) -> Path:
    from fedjax_srp.data._builders import BUILDERS  # imports tensorflow-datasets

    begin, (kind, _, config) = time.monotonic(), name.partition("/")
    folder = data_dir / name / str(BUILDERS[kind].VERSION)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    is_prepared = folder.exists()
    if is_prepared:
        records.check(name, folder)
        say(f"{name}: is prepared already in {folder}")
    try:
        more = {"config": config} if config else {}
        builder = BUILDERS[kind](data_dir=data_dir, file_format="array_record", **more)
    except Exception as error:  # whatever it says about what is there already
        raise ValueError(f"data_dir={str(data_dir)!r}: {_one_line(error)}; give another data_dir") from error
    if not is_prepared:
        say(f"{name}: preparing {folder}")
        _write(name, builder, data_dir)
    if name in records.IMAGES:
        raw = records.read_version(name, folder)
        count = f"{len(raw.y_train):,d} training and {len(raw.y_test):,d} test examples"
    else:
        count = " and ".join(f"{info.num_examples:,d} {split}" for split, info in builder.info.splits.items())
    say(f"{name}: {count}, {time.monotonic() - begin:.1f} s")
    if name not in records.IMAGES:
        say(f"{name}: {records.NOT_LOADED}")
    return folder


def _write(name: str, builder: Any, data_dir: Path) -> None:
    """Downloads what is not there and writes the records."""
    import tensorflow_datasets as tfds

    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        fetch(builder, data_dir)
        sweep(Path(builder.data_path).parent, "incomplete.*")
        with _few_words(), contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    except OSError as error:
        raise ValueError(
            f"data_dir={str(data_dir)!r}: cannot prepare {name} there ({_one_line(error)}); make room or give another "
            "data_dir"
        ) from error


@contextlib.contextmanager
def _few_words() -> Iterator[None]:
    """Bars of tensorflow-datasets on a terminal only."""
    import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        yield
    finally:
        tfds.enable_progress_bar()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
