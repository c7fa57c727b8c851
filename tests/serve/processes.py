"""Real servers for tests: `forerun serve` in a process of its own, on a free port."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from serving import tiny_llama

import forerun

CHAT = "/v1/chat/completions"


def save_tiny(folder: Path) -> str:
    """The tiny model in a folder, as `forerun serve` takes it."""
    target = tiny_llama()
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return str(folder)


class ServerProcess:
    """A running `forerun serve`."""

    def __init__(self, *words: str, seconds: float = 600.0) -> None:
        source = str(Path(forerun.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forerun.cli", "serve", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.printed = ""
        try:
            self.port = self._wait_until_ready(time.monotonic() + seconds)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_until_ready(self, deadline: float) -> int:
        """Read what it prints up to the last line of its welcome."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if "curl" in line and (match := re.search(r"page +http://[^ ]+:(\d+)/", self.printed)):
                return int(match[1])
            assert time.monotonic() < deadline, self.printed
        raise AssertionError(f"The server ended: {self.printed}")

    @property
    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None
        return 1024 * int(match[1])

    def connection(self, timeout: float = 120.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(
        self, path: str = CHAT, body: Any = None, *, method: str = "POST"
    ) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers, and the body as JSON."""
        connection = self.connection()
        encoded = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, encoded, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, dict(response.headers), json.loads(content)

    def text(self, **options: Any) -> str:
        status, _, answer = self.ask(body=chat_body(**options))
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    def stream(self, **options: Any) -> Stream:
        return Stream(self, chat_body(stream=True, **options))

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Until no choice has a row or waits for one."""
        self._wait_for_choices(lambda choices: choices == 0, seconds)

    def wait_until_read(self, num_choices: int, seconds: float = 60.0) -> None:
        """Until so many choices at least have a row or wait for one."""
        self._wait_for_choices(lambda choices: choices >= num_choices, seconds)

    def _wait_for_choices(self, is_enough: Callable[[int], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            _, _, stats = self.ask("/v1/stats", method="GET")
            if is_enough(stats["running"] + stats["waiting"]):
                return
            assert time.monotonic() < deadline, stats
            time.sleep(0.1)

    def stop(self, sent: signal.Signals = signal.SIGTERM, seconds: float = 60.0) -> int:
        """The exit status."""
        self.process.send_signal(sent)
        return self.process.wait(seconds)


class Stream:
    """A streamed answer, read from a socket as slowly as wanted."""

    def __init__(self, server: ServerProcess, body: Any, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(120)
        self.socket.connect(("127.0.0.1", server.port))
        content = json.dumps(body).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + content)
        self.received = b""

    def read_events(self, count: int) -> None:
        """Read until there are so many events, or the end."""
        while self.received.count(b"data: ") < count and (part := self.socket.recv(4096)):
            self.received += part

    def read_all(self) -> str:
        """The text, of an answer that was sent to its end."""
        while part := self.socket.recv(65536):
            self.received += part
        self.leave()
        assert b"data: [DONE]" in self.received, self.received[-500:]
        events = [
            json.loads(line[6:])
            for line in self.received.decode().splitlines()
            if line.startswith("data: {")
        ]
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)

    def leave(self) -> None:
        self.socket.close()


def chat_body(content: str = "the quick brown fox", **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "seed": 1, "max_tokens": 16, "temperature": 0.8, **options}


@contextmanager
def server(*words: str, seconds: float = 600.0) -> Iterator[ServerProcess]:
    """A server that is gone afterwards.  seconds: to start in."""
    process = ServerProcess("--port", "0", *words, seconds=seconds)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def malformed_bodies(count: int, seed: int) -> Iterator[bytes]:
    """A valid body with parts of its text cut, doubled, or replaced, or with a value of a wrong
    type."""
    generator = np.random.default_rng(seed)
    values = [None, True, -1, 1e400, "", "x" * 300, [], [[]], {}, {"a": {}}, -(2**70), "\x00", 0.5]
    valid = chat_body(max_tokens=1, stop=["zz"], n=1, top_p=0.9, stream=False)
    for _ in range(count):
        body = dict(valid)
        if generator.random() < 0.5:
            name = generator.choice([*valid, "messages", "tools", "speculation", "logit_bias"])
            body[str(name)] = values[generator.integers(len(values))]
        text = bytearray(json.dumps(body).encode())
        for _ in range(generator.integers(3)):
            place, size = generator.integers(len(text)), generator.integers(1, 8)
            kind = generator.integers(3)
            if kind == 0:
                del text[place : place + size]
            elif kind == 1:
                text[place:place] = text[place : place + size]
            else:
                text[place : place + size] = generator.bytes(size)
        yield bytes(text)
