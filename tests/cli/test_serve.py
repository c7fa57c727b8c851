"""`forerun serve`: what it says before and instead of serving."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest
from serving import Babbler

from forerun.base.errors import InputError
from forerun.cli import main
from forerun.cli.serve import (
    Address,
    check_origins,
    is_loopback,
    pass_of,
    warnings_for,
    welcome,
)
from forerun.cli.serve_models import check_rules, limits_for
from forerun.serve.admission.admission import Desk
from forerun.serve.http.models import Model, Models, Served

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.serve_models.load_target", None)
    monkeypatch.setattr("forerun.serve.watching.logs.set_up", lambda **_: None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule", "typical"], "The rule is lossy, so texts would change. Received typical."),
        (["--rule", "mach"], "no rule of that name"),
        (["--rules", "match,mach"], "no rule of that name"),
        (["--port", "70000"], "no such port"),
        (["--max-batch", "0"], "--max-batch is too small"),
        (["--slowdown", "0.9"], "--slowdown is too small"),
        (["--slowdown", "nan"], "--slowdown is too small"),
        (["--draft-length", "-1"], "--draft-length is too small"),
        (["--cors-origin", "foo"], "--cors-origin is no origin. Received foo."),
        (["--cors-origin", "https://a.example/"], "--cors-origin is no origin"),
        (["--api-key-file", "/nowhere/keys"], "file of API keys cannot be read"),
        (["--host", "no.such.host.invalid"], "no such address"),
        (["--host", "192.0.2.1"], "The address cannot be taken"),
        (["--port", "0", "--drafter", ""], "No drafter is named"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    words: list[str], message: str, capsys: Capture
) -> None:
    assert main(["serve", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use(capsys: Capture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert f"The port is in use. Received 127.0.0.1, port {port}" in told
    assert "--port" in told


def test_a_missing_extra_names_its_install_command(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    assert main(["serve"]) == 2
    assert 'no uvicorn. Install it with: pip install "forerun[serve]"' in capsys.readouterr().err


def test_lossy_rules_have_to_be_named() -> None:
    assert check_rules("match", None)[0] == "match"
    assert "typical" not in check_rules("match", None)
    assert check_rules("match", "typical, ratio") == ["match", "typical", "ratio"]
    assert check_rules("typical", "typical") == ["typical"]
    with pytest.raises(InputError, match="lossy"):
        check_rules("typical", "ratio")


def test_warnings() -> None:
    assert warnings_for("127.0.0.1", ["match"], has_keys=False) == []
    assert warnings_for("0.0.0.0", ["match"], has_keys=True) == []
    (note,) = warnings_for("0.0.0.0", ["match"], has_keys=False)
    assert "everybody who can reach 0.0.0.0" in note
    (note,) = warnings_for("localhost", ["match", "typical"], has_keys=False)
    assert "lossy" in note
    assert [is_loopback(host) for host in ("::1", "localhost", "::", "10.0.0.1", "a.example")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_the_welcome_says_where_and_how() -> None:
    with socket.socket() as bound:
        bound.bind(("0.0.0.0", 0))
        address = Address.of(bound)
        port = bound.getsockname()[1]
        assert address == Address(f"http://127.0.0.1:{port}")
        assert Address.of(bound, is_tls=True).url == f"https://127.0.0.1:{port}"
    first = Model(["some/model", "usual"], served=Served(Desk(Babbler(), {"none": None}), {}))
    models = Models([first, Model(["other"])])
    text = welcome(models, address, has_keys=False)
    assert "Serving some/model; drafters none; rule match\n" in text
    assert "  also called  usual\n" in text
    assert "  loaded when asked for  other\n" in text
    assert f"page  {address.url}/" in text
    assert f"curl {address.url}/v1/chat/completions -H 'Content-Type: application/json'" in text
    assert '"max_tokens": 64' in text
    assert "Bearer" not in text
    assert "Bearer $KEY" in welcome(models, address, has_keys=True)
    socketed = welcome(models, Address("http://localhost", "/run/it.sock"), has_keys=False)
    assert "curl --unix-socket /run/it.sock http://localhost/v1/" in socketed


def test_origins() -> None:
    check_origins(["*", "https://chat.example.org", "http://localhost:3000", "http://[::1]:3000"])


def test_a_request_has_at_most_as_many_answers_as_there_are_places() -> None:
    assert limits_for(None, 72).max_choices == 72
    assert limits_for(None, 10_000).max_choices == 128
    assert limits_for(None, 72).max_tokens is None
    assert limits_for(7, 72).max_tokens == 7


def test_what_is_loaded_is_logged_first(
    capsys: Capture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InputError("no drafter")

    monkeypatch.setattr("forerun.cli.serve_models.load_drafter", fail)
    with caplog.at_level("INFO", logger="forerun.serve"):
        assert main(["serve", "some/model", "--port", "0"]) == 2
    (record,) = caplog.records
    assert record.getMessage() == "loading"
    assert record.__dict__["fields"]["model"] == "some/model"


def test_a_key_file_is_read(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "keys"
    file.write_text("alice:tiny\n")
    assert main(["serve", "--api-key-file", str(file)]) == 2
    told = capsys.readouterr().err
    assert "An API key is too short. Received line 1." in told
    assert "tiny" not in told


def test_which_pass_runs_is_said_with_room_and_reason() -> None:
    class Target:
        pass_name = "transformers, float16, cuda:0"
        num_tokens_free = 830000
        why_not_lean = "it has a window"

    assert pass_of(Target()) == (
        "transformers, float16, cuda:0; room for 830,000 tokens of all requests together; "
        "not the lean pass: it has a window"
    )
    assert pass_of(object()) == ""
