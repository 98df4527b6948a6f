"""`fedjax-srp data prepare`: data sets from their original archives, for `run --data-dir`."""

from __future__ import annotations

from fedjax_srp.commands.options import REQUIRED, Option
from fedjax_srp.data import archives

OPTIONS = [
    Option("names", tuple[str, ...], REQUIRED, f"which data sets: {', '.join(archives.NAMES)}"),
    Option(
        "data_dir",
        str | None,
        None,
        "folder to write to, with archives in downloads/manual where there is no network; TFDS_DATA_DIR or "
        "~/tensorflow_datasets when left out",
    ),
]


def prepare(names: tuple[str, ...], data_dir: str | None) -> None:
    """Prepares all of them and says where."""
    archives.prepare(names, data_dir)
