"""What goes wrong around a server: clients that vanish, kills, floods.  It goes on every time."""

from __future__ import annotations

import json
import random
import resource
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from processes import CHAT, ServerProcess, Stream, chat_body, malformed_bodies, save_tiny, server

pytestmark = pytest.mark.serve

LONG = 300
"""Tokens; the tiny model's context holds 512."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def shared(model: str) -> Iterator[ServerProcess]:
    """One server for the faults that it should not even notice."""
    with server(model, "--max-queue", "1000", "--reader-seconds", "1") as running:
        yield running


@pytest.fixture
def steady(shared: ServerProcess) -> Iterator[ServerProcess]:
    """The same server, which must be as it was before: in what it says, holds and has running."""
    vanish(shared, 40)  # to have what is allocated once behind us
    text, memory = shared.text(), shared.memory
    yield shared
    shared.wait_until_idle()
    assert shared.text() == text
    assert shared.memory < 1.1 * memory


def vanish(running: ServerProcess, count: int, clients: int = 20) -> None:
    """Clients that read a few events of a long answer and are gone."""

    def client(number: int) -> None:
        stream = running.stream(seed=number, max_tokens=LONG, n=1 + number % 2)
        stream.read_events(number % 5)
        if number % 3 == 0:  # a reset, and no orderly end
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        stream.leave()

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(count)))
    running.wait_until_idle()


def test_500_clients_vanish(steady: ServerProcess) -> None:
    vanish(steady, 500, clients=50)


def test_1100_silent_connections_keep_nobody_out(steady: ServerProcess) -> None:
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    silent: list[socket.socket] = []
    address = ("127.0.0.1", steady.port)
    try:
        silent.extend(socket.create_connection(address, timeout=30) for _ in range(1100))
        for path in ("/health", "/ready", "/v1/stats"):
            status, _, _ = steady.ask(path, method="GET")
            assert status == 200
        assert steady.text()
    finally:
        for one in silent:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def test_half_a_socket_gets_its_whole_answer(steady: ServerProcess) -> None:
    text = steady.text()
    content = json.dumps(chat_body()).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    received = b""
    with socket.create_connection(("127.0.0.1", steady.port), timeout=60) as half:
        half.sendall(head.encode() + content)
        half.shutdown(socket.SHUT_WR)
        while part := half.recv(65536):
            received += part
    body = json.loads(received[received.index(b"{") :])
    assert body["choices"][0]["message"]["content"] == text


def test_a_slow_reader_is_dropped_and_nobody_waits_for_it(steady: ServerProcess) -> None:
    body = chat_body(stream=True, max_tokens=LONG, n=8, logprobs=True, top_logprobs=20)
    body["ignore_eos"] = True  # more than the buffers on the way hold
    slow = Stream(steady, body, receive_buffer=4096)
    slow.read_events(1)
    assert steady.text()  # others are answered meanwhile
    steady.wait_until_idle()
    try:  # the connection ends, and not with the end of the answer
        while part := slow.socket.recv(65536):
            slow.received += part
    except ConnectionError:
        pass
    assert b"[DONE]" not in slow.received
    slow.leave()


def test_a_body_of_100_mb(steady: ServerProcess) -> None:
    size = 100 * 10**6
    for headers in ({"Content-Length": str(size)}, {"Transfer-Encoding": "chunked"}):
        connection = steady.connection()
        connection.putrequest("POST", CHAT)
        connection.putheader("Content-Type", "application/json")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        part = b" " * 10**6
        for _ in range(100):
            chunk = part if "Content-Length" in headers else b"f4240\r\n" + part + b"\r\n"
            connection.send(chunk)
        if "Content-Length" not in headers:
            connection.send(b"0\r\n\r\n")
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"]["code"] == "body_too_large"
        connection.close()


def test_10000_malformed_bodies(steady: ServerProcess) -> None:
    """None is answered with a 5xx, and every refusal has the shape of an error."""

    def client(seed: int) -> dict[int, int]:
        statuses: dict[int, int] = {}
        connection = steady.connection()
        for body in malformed_bodies(2500, seed):
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            statuses[response.status] = statuses.get(response.status, 0) + 1
            if response.status != 200:
                error = json.loads(content)["error"]
                assert set(error) == {"message", "type", "param", "code"}, body
                assert response.status < 500, (body, error)
                assert "Traceback" not in error["message"]
        connection.close()
        return statuses

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(client, range(4)))
    assert sum(count[400] for count in counts) > 5000


def test_kill_and_restart(model: str) -> None:
    """The port is free at once, and the same seed gives the same text."""
    with server(model) as running:
        text = running.text()
        stream = running.stream(max_tokens=LONG)
        stream.read_events(3)
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
        stream.leave()
        port = str(running.port)
    with server(model, "--port", port) as again:
        assert again.port == int(port)
        assert again.text() == text


def test_a_signal_under_load_loses_no_running_request(model: str) -> None:
    with server(model, "--max-batch", "4") as running:
        expected = [running.text(seed=seed, max_tokens=LONG) for seed in range(2)]
        streams = [running.stream(seed=seed % 2, max_tokens=LONG) for seed in range(12)]
        with ThreadPoolExecutor(2) as pool:  # two that are not streamed
            whole = [pool.submit(running.text, seed=seed, max_tokens=LONG) for seed in range(2)]
            for stream in streams[:4]:
                stream.read_events(2)
            running.wait_until_read(len(streams) + len(whole))
            running.process.send_signal(signal.SIGTERM)
            status = 200
            while status == 200:  # until the signal has been heard
                status, headers, answer = running.ask("/ready", method="GET")
            assert (status, answer) == (503, {"status": "draining"})
            status, headers, answer = running.ask(body=chat_body())
            assert (status, answer["error"]["code"]) == (503, "shutting_down")
            assert int(headers["retry-after"]) >= 1
            texts = [stream.read_all() for stream in streams]
            assert [future.result() for future in whole] == expected
        assert texts == [expected[seed % 2] for seed in range(12)]
        assert running.process.wait(60) == 0


def test_a_second_signal_stops_at_once(model: str) -> None:
    with server(model) as running:
        stream = running.stream(max_tokens=LONG, n=8)
        stream.read_events(2)
        running.process.send_signal(signal.SIGINT)
        while running.ask("/ready", method="GET")[0] == 200:
            pass
        assert running.stop(signal.SIGTERM) == 128 + signal.SIGTERM
        stream.leave()


def test_a_full_queue(model: str) -> None:
    with server(model, "--max-batch", "1", "--max-queue", "2") as running:

        def client(seed: int) -> tuple[int, Any]:
            status, headers, answer = running.ask(body=chat_body(seed=seed, max_tokens=60))
            if status == 429:
                assert answer["error"]["code"] == "queue_full"
                return status, int(headers["retry-after"])
            return status, answer["choices"][0]["message"]["content"]

        with ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(client, range(30)))
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 3
        assert all(1 <= value <= 60 for status, value in answers if status == 429)
        running.wait_until_idle()
        seed = random.Random(0).choice([i for i, status in enumerate(statuses) if status == 200])
        assert running.text(seed=seed, max_tokens=60) == answers[seed][1]
