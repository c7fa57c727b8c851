"""Names the server answers to, and failures that are counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from asking import BODY, ask, error_of
from serving import Babbler, run

from forerun.cli.serve import hosts_for
from forerun.cli.serve_models import public_name
from forerun.serve.http.connections import Protocol
from forerun.serve.http.lifecycle import bind
from forerun.serve.http.requests import Bounds
from forerun.serve.watching.roles import Watcher


def test_other_names_than_its_own_are_refused() -> None:
    hosts = hosts_for("127.0.0.1", ["My.Machine"], has_keys=False)
    names = {
        "127.0.0.1:8000": 200,
        "localhost": 200,
        "LOCALHOST.:80": 200,
        "[::1]:8000": 200,
        "my.machine": 200,
        "evil.example:8000": 421,
        "127.0.0.1.evil.example": 421,
        "localhost@evil.example": 421,
        "[": 421,
        "": 421,
    }
    calls = [{"body": BODY, "headers": {"host": name}} for name in names]
    responses = ask(*calls, app={"hosts": hosts})
    assert [response.status for response in responses] == list(names.values())
    assert error_of(responses[-1])["code"] == "unknown_host"


def test_a_target_may_be_a_whole_address() -> None:
    """As proxies write it; the host in it counts, and not the header."""
    hosts = hosts_for("127.0.0.1", [], has_keys=False)
    targets = {
        "http://127.0.0.1:8000/v1/plain": 200,
        "HTTP://localhost/v1/plain": 200,
        "http://evil.example/v1/plain": 421,
        "http://localhost/v1/nothing": 404,
    }
    calls = [{"path": path, "body": BODY, "headers": {"host": "evil.example"}} for path in targets]
    statuses = [response.status for response in ask(*calls, app={"hosts": hosts})]
    assert statuses == list(targets.values())
    health = {"path": "http://localhost", "method": "GET"}
    assert ask(health, app={"hosts": hosts}).headers["content-type"].startswith("text/html")


def test_keys_or_another_address_allow_any_name() -> None:
    assert hosts_for("127.0.0.1", [], has_keys=True) == []
    assert hosts_for("0.0.0.0", [], has_keys=False) == []
    assert hosts_for("0.0.0.0", ["a.example"], has_keys=True) == ["a.example"]


def test_a_slash_too_many_is_not_found() -> None:
    response = ask({"path": "/v1/plain/", "body": BODY, "headers": {"host": "evil.example"}})
    assert response.status == 404
    assert "location" not in response.headers


def test_a_request_that_fails_is_not_refused_too() -> None:
    told: list[str] = []

    class Notes(Watcher):
        def refused(self, reason: str, request_id: str | None = None, owner: str = "") -> None:
            told.append(f"refused {reason}")

        def failed(self, request_id: str, reason: str) -> None:
            told.append(f"failed {reason}")

    class Sick(Babbler):
        def _law(self, ids: Any) -> Any:
            return super()._law(ids) * float("nan")

    assert ask({"body": BODY}, target=Sick(), watcher=Notes()).status == 500
    assert told == ["failed generation_failed"]


def test_a_folder_or_a_file_is_named_by_its_last_part(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secret" / "tuned"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert public_name(str(folder), str(folder)) == "tuned"
    assert public_name(str(folder), f"{folder}-int8") == "tuned-int8"
    assert public_name(".", ".") == "tuned"
    (folder / "0a1b2c").touch()
    (file := folder / "tuned-q4.gguf").symlink_to(folder / "0a1b2c")
    assert public_name(str(file), str(file)) == "tuned-q4.gguf"
    assert public_name("tuned-q4.gguf", "tuned-q4.gguf") == "tuned-q4.gguf"
    assert public_name("Qwen/Qwen3-8B", "Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    assert public_name(None, "bundled") == "bundled"


@pytest.mark.serve
@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"])
@pytest.mark.parametrize("is_second", [False, True])
def test_headers_that_never_end_are_given_up(begin: bytes, is_second: bool) -> None:
    class Hasty(Protocol):
        header_seconds = 0.2

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.5)  # an answer may take longer than headers
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main() -> None:
        bound = bind("127.0.0.1", 0, Bounds())
        server = uvicorn.Server(uvicorn.Config(app, http=Hasty, lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        if is_second:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"204" in await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        assert await reader.read() == b""
        writer.close()
        server.should_exit = True
        await serving

    run(main())
