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


class _Lines:
    """A file that gets each state of a bar as a line, instead of one line that is overwritten."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._last = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> None:
        """Write what a bar writes: a carriage return and its state, or the end of its line."""
        state = text.strip()
        if state and state != self._last:
            self._file.write(f"{state}\n")
            self._last = state


class tqdm(_tqdm):  # noqa: N801
    """Progress bar; outside of terminals and notebooks it is a line that is written once a minute.

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
        if _tqdm is _text and not is_seen and stream is not None:
            # a file has no cursor, hence the position
            in_file = {"mininterval": SECONDS, "maxinterval": SECONDS, "position": 0}
            options = in_file | options | {"file": _Lines(stream)}
        super().__init__(*args, **options)


# tqdm's lock holds a system semaphore, which a killed worker would leave behind
tqdm.set_lock(threading.RLock())
