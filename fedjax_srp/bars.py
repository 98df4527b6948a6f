"""Progress bars, in a terminal or a notebook."""

import sys
import threading
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that a notebook without ipywidgets gets a bar of text
    from tqdm.asyncio import tqdm as _text
    from tqdm.auto import tqdm as _tqdm

__all__ = ["tqdm"]

SECONDS = 60.0  # between two lines of a bar in a file


class tqdm(_tqdm):  # noqa: N801
    """A bar that is written once a minute where neither a terminal nor a notebook shows it.

    Attributes:
        waited: seconds that say nothing about how fast it goes on, as those of compiling: the rate leaves them out.
    """

    waited = 0.0

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar shows, see tqdm; the rate is the mean since the start."""
        found = dict(super().format_dict)
        steps, seconds = found["n"] - found["initial"], found["elapsed"] - self.waited
        return found | {"rate": steps / seconds if steps > 0 and seconds > 0 else None}

    def __init__(self, *args: Any, **options: Any) -> None:
        stream = options.get("file") or sys.stderr
        is_seen = "ipykernel" in sys.modules or (stream is not None and stream.isatty())
        if _tqdm is _text and not is_seen:
            options = {"mininterval": SECONDS, "maxinterval": SECONDS} | options
        super().__init__(*args, **options)


# that of tqdm holds a semaphore of the system, which a worker that is killed would leave behind
tqdm.set_lock(threading.RLock())
