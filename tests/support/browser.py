"""A headless Chromium driven by its DevTools protocol over pipes: no library, no port, no network.

Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import F_DUPFD, fcntl
from io import FileIO
from pathlib import Path
from threading import Timer
from typing import Any, BinaryIO

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_AT_MOST_S = 60
# --remote-debugging-pipe: it reads from file descriptor 3 and writes to 4
_FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --remote-debugging-pipe"


class Page:
    """One tab. `events` are the protocol's, as they came."""

    def __init__(self, to: FileIO, out: BinaryIO) -> None:
        self._to, self._out = to, out
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._count, "method": method, "params": parameters} | session
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path: Path, *, width: int = 1400, dark: bool = False) -> None:
        """Shows a file, and returns when it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        self.frame()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression, or the promise that it is, comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def frame(self) -> None:
        """Returns when what was asked for is painted."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`kind` is Moved, Pressed, Released or Wheel."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)
        self.frame()

    def screenshot(self, path: Path) -> None:
        """What is to be seen, as PNG."""
        path.write_bytes(b64decode(self.call("Page.captureScreenshot")["data"]))

    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, console messages and whatever the browser logged."""
        wrong = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [event for event in self.events if event.get("method") in wrong]

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def _read(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._out.read(1)) != b"\0":
            assert byte, "the browser is gone"
            message += byte
        return json.loads(message)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, with `profile` as its folder."""
    assert CHROMIUM
    (reads, to), (out, writes) = os.pipe(), os.pipe()
    ends = [fcntl(end, F_DUPFD, 10) for end in (reads, writes)]  # out of the way of 3 and 4
    as_asked = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
    command = ["bash", "-c", as_asked, "bash", CHROMIUM, *_FLAGS.split(), f"--user-data-dir={profile}"]
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen(command, pass_fds=ends, stdout=quiet, stderr=quiet) as process,
        open(to, "wb", buffering=0) as into,
        open(out, "rb") as from_,
    ):
        for end in (reads, writes, *ends):
            os.close(end)
        watchdog = Timer(_AT_MOST_S, process.kill)
        watchdog.start()
        try:
            yield Page(into, from_)
        finally:
            watchdog.cancel()
            process.kill()
