"""Progress bars in terminals, notebooks and files."""

import sys
import threading
import warnings
from typing import Any

from typing_extensions import override

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
    @override
    def format_dict(self) -> dict[str, Any]:
        """Values of the bar, see tqdm; the rate is the mean since the start."""
        values = dict(super().format_dict)
        steps = values["n"] - values["initial"]
        seconds = values["elapsed"] - self.waited
        values["rate"] = None
        if steps > 0 and seconds > 0:
            values["rate"] = steps / seconds
        return values

    def __init__(self, *args: Any, **options: Any) -> None:
        stream = options.get("file") or sys.stderr
        is_seen = "ipykernel" in sys.modules or (stream is not None and stream.isatty())
        if _tqdm is _text and not is_seen:
            # a file has no cursor, hence the position
            in_file = {"mininterval": SECONDS, "maxinterval": SECONDS, "position": 0}
            options = in_file | options
        super().__init__(*args, **options)


# tqdm's lock holds a system semaphore, which a killed worker would leave behind
tqdm.set_lock(threading.RLock())
