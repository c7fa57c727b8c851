"""What operators of a server need: TLS, a unix socket, files that are read anew, a request log."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import BODY, bearer
from processes import save_tiny
from serving import Babbler, call, run, serving, until

from forerun.base.errors import InputError
from forerun.drafters import NGram
from forerun.serve.admission.keys import Keys
from forerun.serve.http.assembly import make_server, make_watching
from forerun.serve.http.lifecycle import Renewal, Renewals, Server, at_path, bind, bind_path
from forerun.serve.http.requests import Bounds
from forerun.serve.http.tls import check_certificate
from forerun.serve.watching.logs import RequestLog
from forerun.serve.watching.metrics import Families

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")


def certificate(folder: Path, name: str, days: int = 2) -> tuple[str, str]:
    """Files of a certificate for localhost and its key."""
    key, request, made = (str(folder / f"{name}.{kind}") for kind in ("key", "csr", "pem"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    run_openssl("req", "-new", *curve, "-keyout", key, "-out", request, *names)
    copied = ["-copy_extensions", "copyall"]
    run_openssl(
        "x509", "-req", "-in", request, "-key", key, "-out", made, "-days", str(days), *copied
    )
    return made, key


def run_openssl(*words: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *words], check=True, capture_output=True)


@contextmanager
def running(bound: socket.socket, **options: Any) -> Iterator[Server]:
    """A server of a tiny model on a socket, in a thread of its own."""
    app, _ = make_server(Babbler(), {"ngram": NGram()}, keys=options.pop("keys", None))
    ready = threading.Event()
    server = Server(app, drain_seconds=1, announce=ready.set, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        assert ready.wait(60)
        yield server
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()


def certificate_shown(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), 10)
    with plain, context.wrap_socket(plain) as shown:
        return shown.getpeercert(binary_form=True) or b""


@needs_openssl
def test_answers_over_tls_and_a_certificate_that_is_read_anew(tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "first")
    check_certificate(made, key)
    bound = bind("127.0.0.1", 0, Bounds())
    port = bound.getsockname()[1]
    with running(bound, tls=(made, key)) as server:
        url = f"https://127.0.0.1:{port}"
        trusted = ssl.create_default_context(cafile=made)
        body = {"prompt": "the quick", "max_tokens": 3}
        answer = httpx.post(f"{url}/v1/completions", json=body, verify=trusted, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 3
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=10)
        before = certificate_shown(port)
        again, other_key = certificate(tmp_path, "second")
        shutil.copy(again, made)
        server._renewals.read()  # the key does not belong to it: the old one stays
        assert certificate_shown(port) == before
        shutil.copy(other_key, key)
        server._renewals.read()
        assert certificate_shown(port) == ssl.PEM_cert_to_DER_cert(Path(again).read_text())


@needs_openssl
def test_what_is_wrong_with_a_certificate_is_told_at_the_start(tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "first")
    _, other = certificate(tmp_path, "second")
    old, its_key = certificate(tmp_path, "old", days=-1)
    text = tmp_path / "text"
    text.write_text("no certificate")
    for files, told in (
        ((made, other), "do not belong together"),
        ((old, its_key), "The certificate has expired."),
        ((made, str(text)), "no certificate and key"),
        ((str(text), key), "no certificate and key"),
        ((str(tmp_path / "none"), key), "cannot be read. Received"),
        ((made, str(tmp_path)), "cannot be read"),
    ):
        with pytest.raises(InputError, match=told):
            check_certificate(*files)


def test_answers_over_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "it.sock")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)  # as a server that was killed leaves it
    bound = bind_path(path)
    with running(bound):
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=30) as client:
            assert client.get("http://localhost/health").json() == {"status": "ok"}
            body = {"prompt": "the quick", "max_tokens": 3}
            assert client.post("http://any.name/v1/completions", json=body).status_code == 200
        with pytest.raises(InputError, match="stop what has this one"):
            bind_path(path)
    file = tmp_path / "file"
    file.write_text("kept")
    for wrong in (str(file), str(tmp_path / "no" / "folder"), "/" + 200 * "x", ""):
        with pytest.raises(InputError, match="The socket cannot be made"):
            bind_path(wrong)
    assert file.read_text() == "kept"


def test_a_socket_is_its_makers_alone(tmp_path: Path) -> None:
    """Also of one that still loads its model; and what another has put in its place stays."""
    path = tmp_path / "it.sock"
    with at_path(str(path)), pytest.raises(InputError, match="stop what has this one"):
        bind_path(str(path))
    assert not path.exists()
    with at_path(str(path)):
        path.unlink()
        others = bind_path(str(path))
    assert path.is_socket()
    others.close()


def test_keys_are_read_anew_with_what_they_have_used(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a:sk-aaaaaaaa requests_per_minute=2\nb:sk-bbbbbbbb\n")
    keys = Keys.from_file(file)

    async def work() -> list[int]:
        async with serving(app={"keys": keys}) as (app, _):

            async def statuses(*names: str) -> list[int]:
                return [(await call(app, body=BODY, headers=bearer(n))).status for n in names]

            told = await statuses("sk-aaaaaaaa", "sk-bbbbbbbb", "sk-cccccccc")
            file.write_text("a:sk-aaaaaaaa requests_per_minute=2\nc:sk-cccccccc\n")
            keys.renew(file)
            told += await statuses("sk-bbbbbbbb", "sk-cccccccc", "sk-aaaaaaaa", "sk-aaaaaaaa")
            file.write_text("a:short\n")
            with pytest.raises(InputError, match="line 1"):
                keys.renew(file)
            told += await statuses("sk-cccccccc")
            file.write_text("a:sk-aaaaaaaa requests_per_minute=60\n")
            keys.renew(file)
            return told + await statuses("sk-aaaaaaaa", "sk-cccccccc")

    assert run(work()) == [200, 200, 401, 401, 200, 200, 429, 200, 200, 401]


def test_a_bad_file_stops_no_other_from_being_read(caplog: pytest.LogCaptureFixture) -> None:
    read: list[str] = []

    def fail() -> None:
        raise InputError("line 3 is wrong")

    def break_down() -> None:
        raise ssl.SSLError("key values mismatch")

    renewals = Renewals([Renewal("keys", fail), Renewal("certificate", break_down)])
    renewals.add(Renewal("request log", lambda: read.append("log")))
    with caplog.at_level("INFO", logger="forerun.serve"):
        renewals.read()
    told = [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]
    assert told == [
        ("not renewed", {"what": "keys", "reason": "line 3 is wrong"}),
        ("not renewed", {"what": "certificate", "reason": "SSLError: ('key values mismatch',)"}),
        ("renewed", {"what": "request log"}),
    ]
    assert read == ["log"]


def test_a_signal_while_the_first_model_is_loaded_is_obeyed_once_the_server_runs() -> None:
    usual, read = signal.getsignal(signal.SIGHUP), list[str]()
    renewals = Renewals([Renewal("keys", lambda: read.append("keys"))])

    async def work() -> None:
        renewals.begin(asyncio.get_running_loop())
        assert read == ["keys"]
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: read == ["keys", "keys"])

    try:
        renewals.remember()
        os.kill(os.getpid(), signal.SIGHUP)
        assert read == []
        run(work())
    finally:
        signal.signal(signal.SIGHUP, usual)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_request_log_has_counts_and_times_and_no_texts(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    log = RequestLog(str(file))
    watcher = make_watching(
        model="tiny", drafter="ngram", rule="match", families=Families(), request_log=log
    )
    keys = Keys.from_lines(["alice:sk-aaaaaaaa"])
    body = {**BODY, "max_tokens": 9, "speculation": {"drafter": "ngram"}}

    async def work() -> str:
        async with serving(watcher=watcher, app={"keys": keys}) as (app, _):
            answer = await call(app, body=body, headers=bearer("sk-aaaaaaaa"))
            await call(app, body={"prompt": 7}, headers=bearer("sk-aaaaaaaa"))
            file.rename(tmp_path / "moved")
            log.reopen()
            await call(app, body=body, headers=bearer("sk-aaaaaaaa"))
            return str(answer.headers["x-request-id"])

    request_id = run(work())
    answered, refused = lines_of(tmp_path / "moved")
    assert answered["id"] == request_id
    told = {name: answered[name] for name in ("event", "owner", "model", "route", "tokens")}
    assert told == {
        "event": "answer",
        "owner": "alice",
        "model": "tiny",
        "route": "/v1/plain",
        "tokens": 9,
    }
    assert answered["finish"] == "length"
    assert answered["prompt_tokens"] > 9
    assert answered["accepted"] <= answered["drafted"]
    times = [answered[name] for name in ("queue_seconds", "first_token_seconds", "seconds")]
    assert times == sorted(times)
    assert (refused["event"], refused["reason"]) == ("refused", "invalid_type")
    (later,) = lines_of(file)
    assert later["event"] == "answer"
    texts = "".join(one.read_text() for one in (file, tmp_path / "moved"))
    assert "quick" not in texts
    assert "sk-aaaaaaaa" not in texts


def test_a_disk_that_is_full_ends_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog("/dev/full")
    for _ in range(3):
        log("answer", id="x")
    (record,) = [record for record in caplog.records if record.name == "forerun.serve"]
    assert record.getMessage() == "request log fails"
    log.reopen()  # although what is left in it cannot be written
    with pytest.raises(InputError, match="The request log cannot be opened"):
        RequestLog("/nowhere/requests")


@needs_openssl
@pytest.mark.serve
def test_a_process_with_all_of_it(tmp_path: Path) -> None:
    """A configuration file, TLS over a unix socket, two models, keys, SIGHUP, a request log."""
    made, key = certificate(tmp_path, "first")
    folder = save_tiny(tmp_path / "tiny")
    keys, log, path = tmp_path / "keys", tmp_path / "log.jsonl", tmp_path / "it.sock"
    keys.write_text("a:sk-aaaaaaaa\n")
    config = tmp_path / "forerun.toml"
    config.write_text(
        f'uds = "{path}"\ntls-cert = "{made}"\ntls-key = "{key}"\napi-key-file = "{keys}"\n'
        f'request-log = "{log}"\ndrafter = "ngram"\n'
        f'[models.one]\nmodel = "{folder}"\n[models.two]\nmodel = "{folder}"\nname = "second"\n'
    )
    words = [sys.executable, "-m", "forerun.cli", "serve", "--config", str(config)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = ""
        while "try" not in printed:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            printed += line
        assert f"socket  {path}" in printed
        assert "loaded when asked for  two, second" in printed
        trusted = ssl.create_default_context(cafile=made)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path), verify=trusted), timeout=60
        ) as client:

            def status(secret: str, model: str) -> int:
                return client.post(
                    "https://localhost/v1/completions",
                    json={"prompt": "the quick", "max_tokens": 3, "model": model},
                    headers=bearer(secret),
                ).status_code

            asked = [("sk-aaaaaaaa", "one"), ("sk-aaaaaaaa", "second"), ("sk-bbbbbbbb", "one")]
            assert [status(*one) for one in asked] == [200, 200, 401]
            keys.write_text("b:sk-bbbbbbbb\n")
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 20
            while status("sk-bbbbbbbb", "one") != 200:
                assert time.monotonic() < deadline
            assert status("sk-aaaaaaaa", "one") == 401
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert not path.exists()
    assert {line["model"] for line in lines_of(log) if line["event"] == "answer"} == {"one", "two"}
