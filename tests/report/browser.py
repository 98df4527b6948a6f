"""A headless Chromium, driven by its DevTools protocol over a pipe, without a library."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
FLAGS = (
    "--headless",
    "--no-sandbox",  # which root has not
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--no-default-browser-check",
    "--no-first-run",
    "--hide-scrollbars",
)
SECONDS = 120.0  # for an answer, on a machine that has much else to do


def is_skipped() -> bool:
    """Return True if tests in a browser are skipped; with NEEDS_CHROMIUM=1 they fail instead."""
    return CHROMIUM is None and not os.environ.get("NEEDS_CHROMIUM")


# The browser reads commands from descriptor 3 and answers on 4. The pipes may have these numbers, so they move first.
REDIRECT = """
import fcntl, os, sys
for place, descriptor in enumerate([fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]):
    os.dup2(descriptor, 3 + place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """One tab; `errors` collects errors and warnings of the console and of scripts, and network requests."""

    def __init__(self, reading: int, writing: int, log: Path):
        self._reading, self._writing, self._buffer, self._count = reading, writing, b"", 0
        self._log = log
        self._session = self._target = None
        self.errors: list[str] = []

    def send(self, method, **params):
        """Send a command and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select(
                [self._reading], [], [], max(0.0, end - time.monotonic())
            )
            assert ready, "the browser does not answer"
            received = os.read(self._reading, 1 << 20)
            assert received, f"the browser has ended: {self._log.read_text()[-2000:]}"
            self._buffer += received
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._listen(message.get("method"), message.get("params"))
        return message

    def _listen(self, event, params):
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(
                details.get("exception", {}).get("description") or details["text"]
            )
        if event == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(
                str(
                    [
                        value.get("value") or value.get("description")
                        for value in params["args"]
                    ]
                )
            )
        if event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        if event == "Network.requestWillBeSent" and params["request"]["url"].startswith(
            ("http", "ws")
        ):
            self.errors.append(f"asked the network: {params['request']['url'][:80]}")

    def ask(self, expression):
        """Evaluate a JavaScript expression; promises are awaited."""
        result = self.send(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, code: int):
        """Press and release a key in the focused element."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def wait(self, expression, seconds=SECONDS):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, f"never: {expression}; {self.errors}"
            time.sleep(0.02)

    def open(
        self,
        path: Path,
        state: str = "",
        width: int = 1280,
        height: int = 900,
        phone: bool = False,
    ):
        """Open the report page at a state of its address in a new tab, and wait until it is drawn."""
        if self._target is not None:
            self.send("Target.closeTarget", targetId=self._target)
        self._target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send(
            "Target.attachToTarget", targetId=self._target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=f"{path.absolute().as_uri()}#{state}")
        self.wait("document.body && document.body.dataset.ready === 'true'")


@contextlib.contextmanager
def browser(profile: Path):
    """Run a browser with one tab during the block; `profile` is an empty folder for it.

    What the browser prints is kept beside the folder, for the message of a browser that ends.
    """
    if CHROMIUM is None:
        raise RuntimeError(
            "NEEDS_CHROMIUM is set, and there is no Chromium: install chromium"
        )
    to_browser, from_browser = os.pipe(), os.pipe()
    ends = to_browser[0], from_browser[1]
    command = [
        sys.executable,
        "-c",
        REDIRECT,
        *map(str, ends),
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={profile}",
    ]
    log = profile.with_suffix(".log")
    with log.open("wb") as printed:
        process = subprocess.Popen(command, pass_fds=ends, stderr=printed)
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        tab = Tab(from_browser[0], to_browser[1], log)
        yield tab
        tab.send("Browser.close")
    finally:
        os.close(to_browser[1])
        os.close(from_browser[0])
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
