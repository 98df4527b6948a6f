"""Which errors are answered in one line."""

from __future__ import annotations

import traceback
from pathlib import Path


def is_ours(error: BaseException, folder: Path = Path(__file__).parents[1]) -> bool:
    """Whether code in a folder raised it on purpose; an error from deeper is a bug and keeps its traceback.

    Args:
        error: as caught.
        folder: default this package.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(folder)
