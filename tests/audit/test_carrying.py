"""Politeness, journal, budget, and HTTP itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from standins.rounds import FunctionRound
from standins.server import StandIn

import forerun as fr
from forerun.audit.budget import Budget, SpentError
from forerun.audit.journal import Journal
from forerun.audit.wire import Call, EndpointError, Http, Polite, Raw, retry_after
from forerun.base.errors import InputError
from forerun.proof.broken import walk

CALL = Call("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})


class Scripted:
    """Answers one after the other; an exception is raised."""

    def __init__(self, *answers: Raw | Exception) -> None:
        self.answers = list(answers)
        self.num_calls = 0

    def send(self, call: Call) -> Raw:
        self.num_calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.time += seconds

    def now(self) -> float:
        return self.time


def polite(transport: Any, **settings: Any) -> tuple[Polite, Clock]:
    clock = Clock()
    return Polite(transport, sleep=clock.sleep, now=clock.now, **settings), clock


def test_a_busy_endpoint_is_given_the_time_it_asks_for() -> None:
    scripted = Scripted(Raw(429, "", {"retry-after": "7"}), Raw(503), Raw(503), Raw(200, "fine"))
    carrier, clock = polite(scripted, rate=1000)
    assert carrier.send(CALL).body == "fine"
    assert [pause for pause in clock.pauses if pause >= 1] == [7, 2, 4]
    assert carrier.waited == 13


def test_patience_ends() -> None:
    carrier, _ = polite(Scripted(Raw(429)), patience=2)
    with pytest.raises(EndpointError, match="stays busy"):
        carrier.send(CALL)


def test_a_lost_connection_is_tried_again_twice() -> None:
    lost = EndpointError("gone")
    carrier, _ = polite(Scripted(lost, lost, Raw(200)))
    assert carrier.send(CALL).status == 200
    carrier, _ = polite(Scripted(lost))
    with pytest.raises(EndpointError, match="gone"):
        carrier.send(CALL)


def test_the_rate_is_kept() -> None:
    carrier, clock = polite(Scripted(Raw(200)), rate=4)
    for _ in range(9):
        carrier.send(CALL)
    assert clock.time == pytest.approx(2)


def test_retry_after_may_be_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60))
    assert 50 < (retry_after({"retry-after": later}) or 0) <= 60
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    "damage",
    [b"", b"{}", b"[]", b'{"name": "one"}', b"\xff\xfe", b"[" * 100_000, b'{"settings": 1}'],
)
def test_a_damaged_line_of_a_journal_is_asked_for_again(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(Scripted(Raw(200, {})), path, {})
    journal.answer("one", CALL)
    journal.close()
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage, second, damage[:3]]))
    again = Journal(Scripted(Raw(200, {})), path, {})
    assert again.num_resumed == 1
    path.write_bytes(first + b"\n" + damage + b"\n")
    again = Journal(Scripted(Raw(200, {})), path, {})
    assert again.num_resumed == 0
    assert again.answer("one", CALL).status == 200


def test_a_journal_answers_what_it_knows(tmp_path: Path) -> None:
    path, settings = tmp_path / "journal.jsonl", {"url": "u", "budget": 9}
    scripted = Scripted(Raw(200, {"a": 1}, {}, ((0.5, {"b": 2}),), 0.7))
    journal = Journal(scripted, path, settings)
    first = journal.answer("one", CALL)
    journal.close()
    with path.open("a") as file:
        file.write('{"name": "two", "sent"')  # killed while writing
    again = Journal(scripted, path, settings)
    assert again.answer("one", CALL) == first
    assert again.num_resumed == 1
    assert scripted.num_calls == 1
    again.answer("one", Call("POST", "/v1/completions", {"prompt": "other"}))
    assert scripted.num_calls == 2  # the same name for another question is no answer
    again.close()
    third = Journal(scripted, path, settings)
    third.answer("two", CALL)
    assert scripted.num_calls == 3
    third.close()
    with pytest.raises(InputError, match="another audit"):
        Journal(scripted, path, {"url": "u", "budget": 10})


def test_a_budget_is_kept_to_the_token() -> None:
    budget = Budget(10)
    budget.reserve(6)
    with pytest.raises(SpentError):
        budget.reserve(5)
    budget.settle(6, 2)
    assert budget.left == 8
    with budget.share(3):
        assert budget.left == 3
        with pytest.raises(SpentError):
            budget.reserve(4)
    budget.reserve(8)
    assert budget.left == 0


class Handler(BaseHTTPRequestHandler):
    """A stand-in behind real HTTP; it wants a key."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def do_GET(self) -> None:
        self._answer(Call("GET", self.path))

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self._answer(Call("POST", self.path, json.loads(self.rfile.read(length))))

    def _answer(self, call: Call) -> None:
        raw = Raw(401, {"error": {"message": "no key"}})
        if self.headers["authorization"] == "Bearer secret":
            raw = self.server.stand_in.send(call)
        kind = "application/json"
        if raw.events:
            kind = "text/event-stream"
            lines = [e if isinstance(e, str) else json.dumps(e) for _, e in raw.events]
            data = "".join(f"data: {line}\n\n" for line in lines).encode()
        else:
            data = (raw.body if isinstance(raw.body, str) else json.dumps(raw.body)).encode()
        self.send_response(raw.status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.stand_in = StandIn(seed=3, round=FunctionRound(walk))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def test_an_audit_over_http(address: str, tmp_path: Path) -> None:
    report = fr.audit(address, key="secret", budget=60, rate=1e6, out=tmp_path)
    assert report.is_sound
    assert report.is_speculating
    assert report.num_tokens <= 60
    page = (tmp_path / "report.html").read_text()
    assert "Nothing was found wrong" in page
    assert "http-equiv" not in page
    assert "src=" not in page
    assert json.loads((tmp_path / "report.json").read_text())["is_sound"] is True


def test_a_wrong_key(address: str) -> None:
    with pytest.raises(EndpointError, match="--key-env"):
        fr.audit(address, key="wrong", budget=100)


def test_tls_against_a_server_without(address: str) -> None:
    with pytest.raises(EndpointError, match="TLS failed"):
        Http(address.replace("http:", "https:")).send(Call("GET", "/v1/models"))


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EndpointError, match="Check that a server listens"):
        Http(f"http://127.0.0.1:{port}/v1").send(Call("GET", "/v1/models"))
    with pytest.raises(EndpointError, match="cannot be reached"):
        Http("http://no-such-host.invalid/v1").send(Call("GET", "/v1/models"))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "", "http://"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InputError, match="http://host:port/v1"):
        fr.audit(url, budget=100)
