"""The original archives of a data set: compared with the checksums on record where they are, downloaded where not.

The download is our own: that of tensorflow-datasets has no time limit and goes on in threads after a failure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fedjax_srp.data.cache import incomplete, sweep

_TIMEOUT = (10.0, 60.0)  # seconds to connect, and without a byte
_ATTEMPTS = 2


class Archive(NamedTuple):
    """A file on the record of tensorflow-datasets."""

    file: str  # the name of the original
    url: str
    size: int  # bytes
    sha256: str


class MissingError(Exception):
    """A download failed; `archives` are all that are still missing."""

    archives: Sequence[Archive] = ()


def by_hand(data_dir: Path) -> Path:
    """The folder for archives under their own names, downloaded or put there by hand."""
    return data_dir / "downloads" / "manual"


def fetch(builder: Any, data_dir: Path) -> None:
    """Puts the archives of a data set where its builder finds them.

    Raises:
        ValueError: in one line: one that is there is not the original.
        MissingError: one is not there and cannot be downloaded.
        OSError: a folder cannot be written to, or an archive not be read.
    """
    archives = [Archive(info.filename, url, info.size, info.checksum) for url, info in builder.url_infos.items()]
    absent = []
    for archive in archives:
        path = _found(archive, builder.name, data_dir)
        if path is None:
            absent.append(archive)
        elif difference := _difference(path, archive):
            raise ValueError(f"{path}: {difference}; delete it and run the command again")
    for place, archive in enumerate(absent):
        try:
            _download(archive, by_hand(data_dir) / archive.file)
        except MissingError as error:
            error.archives = absent[place:]
            raise


def _found(archive: Archive, name: str, data_dir: Path) -> Path | None:
    """The file that tensorflow-datasets takes for an archive, unseen and by its own rules, or None."""
    from tensorflow_datasets.core.download import resource

    manual = by_hand(data_dir) / archive.file
    if manual.exists():
        return manual
    file, downloads = resource.get_dl_fname(archive.url, archive.sha256), data_dir / "downloads"
    places: list[Any] = [downloads / name / file, downloads / file]
    return next(filter(resource.is_locally_cached, places), None)


def _difference(path: Path, archive: Archive) -> str:
    """What tells a file from the original, or nothing."""
    size = path.stat().st_size
    if size != archive.size:
        return f"has {size:,d} bytes, the original {archive.size:,d} bytes"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if digest == archive.sha256 else f"has the sha256 {digest[:16]}..., the original {archive.sha256[:16]}..."


def _download(archive: Archive, target: Path) -> None:
    """Transfers an archive, in more than one attempt if the connection fails."""
    import requests  # tensorflow-datasets needs it

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _transfer(archive, target)
            return
        except requests.RequestException as error:
            if attempt == _ATTEMPTS:
                what = type(error).__name__ if error.response is None else f"status {error.response.status_code}"
                raise MissingError(f"{what} at {urlsplit(archive.url).hostname}") from error


def _transfer(archive: Archive, target: Path) -> None:
    import requests

    from fedjax_srp.bars import tqdm

    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, "*.incomplete-*")
    with incomplete(target) as place:
        path = place / archive.file
        with (
            requests.get(archive.url, stream=True, timeout=_TIMEOUT) as response,
            path.open("wb") as file,
            tqdm(total=archive.size, desc=archive.file, unit="B", unit_scale=True, disable=None, leave=False) as bar,
        ):
            response.raise_for_status()
            for block in response.iter_content(2**20):
                file.write(block)
                bar.update(len(block))
        if difference := _difference(path, archive):
            raise MissingError(f"what {urlsplit(archive.url).hostname} sends {difference}")
        path.rename(target)
