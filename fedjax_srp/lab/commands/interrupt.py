"""Handling of Ctrl-C, which ends a program within a second at any time.

Python's own handler waits until the interpreter is back from compiled code, and raises an exception that libraries
swallow or print. So a thread watches for the signal instead, and ends the process. Files are replaced atomically, and
the system releases locks, so ending at any moment loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import NoReturn

EXIT_CODE = 130  # 128 + SIGINT, as in shells


def watch(line: str) -> None:
    """Make Ctrl-C print the line and end the process from now on.

    A signal that is ignored, as in the background of a shell, stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    # not the main thread, no pipe, or Windows with Python 3.11: Python's own handler stays
    with contextlib.suppress(AttributeError, OSError, ValueError):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, lambda *_: None)

        def wait() -> None:
            while os.read(reader, 1)[0] != signal.SIGINT:
                pass
            end(line)

        threading.Thread(target=wait, name="ctrl-c", daemon=True).start()


def end(line: str) -> NoReturn:
    """Print the line and end the process at once, with its threads."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())  # the interrupted code may hold `sys.stderr`
    os._exit(EXIT_CODE)
