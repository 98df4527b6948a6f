"""Progress bars in terminals, notebooks and files."""

import sys
import threading
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
    from tqdm.asyncio import tqdm as _text
    from tqdm.auto import tqdm as _tqdm

__all__ = ["tqdm"]

SECONDS = 60.0  # between updates in a file


class tqdm(_tqdm):  # noqa: N801
    """Progress bar that is written once a minute outside of terminals and notebooks.

    Attributes:
        waited: seconds that the rate excludes, such as compiling.
    """

    waited = 0.0

    @property
    def format_dict(self) -> dict[str, Any]:
        """Values of the bar, see tqdm; the rate is the mean since the start."""
        found = dict(super().format_dict)
        steps, seconds = found["n"] - found["initial"], found["elapsed"] - self.waited
        return found | {"rate": steps / seconds if steps > 0 and seconds > 0 else None}

    def __init__(self, *args: Any, **options: Any) -> None:
        stream = options.get("file") or sys.stderr
        is_seen = "ipykernel" in sys.modules or (stream is not None and stream.isatty())
        if _tqdm is _text and not is_seen:
            options = {
                "mininterval": SECONDS,
                "maxinterval": SECONDS,
                "position": 0,
            } | options  # a file has no cursor
        super().__init__(*args, **options)


# tqdm's lock holds a system semaphore, which a killed worker would leave behind
tqdm.set_lock(threading.RLock())
