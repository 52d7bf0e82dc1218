"""A browser without a window, spoken to over pipes by Chromium's own protocol."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
#: It looks nothing up on its own: no updates, no lists, no reports.
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--disable-extensions", "--disable-domain-reliability"),
    *("--disable-client-side-phishing-detection", "--disable-breakpad", "--no-pings"),
    *("--metrics-recording-only", "--disable-field-trial-config", "--no-default-browser-check"),
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    # names other than these are nobody's
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
DEADLINE_S = 90.0


class Chromium:
    """A browser with one page."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self._process = process
        self._write, self._read = write, read
        self._inbox = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]

    def call(self, method: str, **parameters: Any) -> Any:
        """What the browser answers to a call."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        ends_at = time.monotonic() + DEADLINE_S
        while True:
            *heard, self._inbox = self._inbox.split(b"\0")
            for one in map(json.loads, heard):
                if one.get("id") == self._number:
                    assert "error" not in one, one
                    return one["result"]
            assert time.monotonic() < ends_at, f"{method}: no answer"
            if select.select([self._read], [], [], 1.0)[0]:
                piece = os.read(self._read, 2**20)
                assert piece, f"{method}: the browser has ended"
                self._inbox += piece

    def open(self, address: str) -> None:
        """Go to an address."""
        found = self.call("Page.navigate", url=address)
        assert not found.get("errorText"), found

    def value(self, expression: str) -> Any:
        """What an expression of the page is."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression of the page is true. Return what it is."""
        ends_at = time.monotonic() + DEADLINE_S
        while not (found := self.value(expression)):
            seen = self.value("document.title + ' ' + document.body?.innerText.slice(0, 2000)")
            assert time.monotonic() < ends_at, (expression, self.value("location.href"), seen)
            time.sleep(0.1)
        return found

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press a key: by its name and number, with Shift as 8."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers,
                windowsVirtualKeyCode=code,
            )  # fmt: skip

    def end(self) -> None:
        """End the browser."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        os.close(self._write)
        os.close(self._read)


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Chromium]:
    """Give a browser whose files are in a folder."""
    assert PROGRAM is not None
    given, write = os.pipe()
    read, taken = os.pipe()
    # the browser has them as 3 and 4, which are in nobody's way then
    its_input, its_output = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (given, taken))
    shell = f'exec 3<&{its_input} 4>&{its_output}; exec "$@"'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", PROGRAM, *QUIET, "--remote-debugging-pipe",
             f"--user-data-dir={folder / 'profile'}", "--window-size=1280,900"],
            pass_fds=(its_input, its_output), stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    for handle in (given, taken, its_input, its_output):
        os.close(handle)
    browser = None
    try:
        browser = Chromium(process, write, read)
        yield browser
    finally:
        if browser is not None:
            browser.end()
        else:
            process.kill()
            process.wait(DEADLINE_S)
