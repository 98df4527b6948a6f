"""Libraries that not every installation has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

LAB = '"fedjax-srp[lab]"'
DATA = '"fedjax-srp[data]"'
SLURM = '"fedjax-srp[slurm]"'
PRIVACY = '"fedjax-srp[privacy]"'


class MissingLibraryError(ValueError):
    """A library is not installed, or cannot be imported."""


@contextlib.contextmanager
def needed_by(use: str, install: str) -> Iterator[None]:
    """Turn an error of the imports in the block into one line with the remedy.

    Args:
        use: what needs the libraries.
        install: what pip installs them with.

    Raises:
        MissingLibraryError: an import fails.
    """
    try:
        yield
    except ImportError as error:
        problem = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            problem = f"{error.name.partition('.')[0]} is not installed"
        raise MissingLibraryError(f"{use}: {problem}; pip install {install}") from None
