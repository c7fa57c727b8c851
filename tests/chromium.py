"""Chromium for tests: its flags, and a tab driven over a pipe.

`--remote-debugging-pipe` speaks the DevTools protocol over two file descriptors, so that pressing
real keys and taking pictures needs no package and no driver.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "End": 35, " ": 32}
SHIFT = 8


def find_chromium() -> str:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if path is None:
        pytest.fail("Chromium is not installed. On Debian: apt-get install chromium")
    return path


class Tab:
    """One page in a browser of its own; `faults` holds what went wrong in it."""

    def __init__(self, profile: Path) -> None:
        theirs_in, self._write_end = os.pipe()
        self._read_end, theirs_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        flags = (*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}")
        self._process = subprocess.Popen(
            [find_chromium(), *flags, "about:blank"],
            close_fds=False,
            preexec_fn=lambda: [os.dup2(end, 3 + i) for i, end in enumerate(ends)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read_end, selectors.EVENT_READ)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self.faults: list[str] = []
        self._made_up: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._selector.close()
        os.close(self._write_end)
        os.close(self._read_end)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol and wait for its result."""
        number = self._send(method, **parameters)
        while True:
            answer = self._next_message(method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self._note(answer)

    def _send(self, method: str, **parameters: Any) -> int:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        return self._number

    def _next_message(self, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            if not self._selector.select(timeout=60):
                raise TimeoutError(f"Chromium has not answered {waiting_for} within a minute")
            arrived = os.read(self._read_end, 1 << 20)
            if not arrived:
                raise RuntimeError(f"Chromium has ended during {waiting_for}")
            self._unread += arrived
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: Mapping[str, Any]) -> None:
        """Keep exceptions, and errors of the console such as refused resources."""
        detail = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.faults.append(str(detail["exceptionDetails"].get("exception", detail)))
        if event["method"] == "Log.entryAdded" and detail["entry"]["level"] == "error":
            entry = detail["entry"]
            self.faults.append(f"{entry['text']} {entry.get('url', '')}".strip())
        if event["method"] == "Fetch.requestPaused":
            name = {"requestId": detail["requestId"]}
            if self._made_up:
                self._send("Fetch.fulfillRequest", **name, **self._made_up.pop(0))
            else:
                self._send("Fetch.continueRequest", **name)

    def answer_next(self, pattern: str, status: int, body: str, headers: Mapping[str, str]) -> None:
        """Answer the next request to an address like this ourselves, in the server's place."""
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])
        listed = [{"name": name, "value": value} for name, value in headers.items()]
        coded = base64.b64encode(body.encode()).decode()
        self._made_up.append({"responseCode": status, "responseHeaders": listed, "body": coded})

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not self.ask(f"Boolean({expression})"):
            if time.monotonic() > end:
                shown = self.ask("document.body.innerText")
                raise TimeoutError(f"{expression} did not come true.  The page shows:\n{shown}")
            time.sleep(0.05)

    def press(self, key: str, *, shift: bool = False) -> None:
        code = KEYS[key]
        event = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": code,
            "modifiers": SHIFT * shift,
        }
        text = {"Enter": "\r", " ": " "}.get(key)
        if text is not None:
            event["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def point_at(self, selector: str, *, click: bool = False) -> None:
        """Move the pointer to the middle of an element."""
        find = f"document.querySelector({json.dumps(selector)})"
        box = self.ask(f"{find}.getClientRects()[0].toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            button = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type="mousePressed", **button)
            self.call("Input.dispatchMouseEvent", type="mouseReleased", **button)

    def show_as(self, width: int, height: int, scheme: str, motion: str = "no-preference") -> None:
        """The size of the window in CSS pixels, and what the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width < 500 else 1,
            mobile=width < 500,
        )
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=listed)

    def picture(self, file: Path) -> Path:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))
        return file
