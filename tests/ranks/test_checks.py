"""What is refused before a rank is started, and the small parts that ranks rest on."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from forerun.base.errors import InputError, UnsupportedError
from forerun.ranks import load, watchdog
from forerun.ranks.loading import check_config, check_device
from forerun.ranks.watchdog import Watchdog
from forerun.ranks.wire import Wire


def config(kind: str, **options: Any) -> Any:
    return AutoConfig.for_model(kind, **options)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no tensor-parallel plan .* tiny \(gpt2\)"):
        check_config(config("gpt2"), "tiny", 2)


@pytest.mark.parametrize(
    ("options", "num_ranks", "said"),
    [
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, "9 heads .* 2 ranks.* Use 3"),
        ({"num_attention_heads": 8, "num_key_value_heads": 1}, 2, "1 heads .* Use one GPU"),
        ({"num_attention_heads": 8, "num_key_value_heads": 4}, 8, "4 heads .* Use 2 or 4"),
    ],
)
def test_heads_that_do_not_divide_are_refused(
    options: dict[str, int], num_ranks: int, said: str
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        check_config(config("llama", hidden_size=144, **options), "tiny", num_ranks)


def test_heads_that_divide_or_are_not_split_pass() -> None:
    check_config(config("qwen3", num_attention_heads=8, num_key_value_heads=4), "tiny", 4)
    odd = config("phi3", hidden_size=144, num_attention_heads=9, num_key_value_heads=3)
    check_config(odd, "tiny", 2)  # its plan gathers the heads of all ranks


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check_device(None, 4) == check_device("cpu", 4) == "cpu"
    with pytest.raises(InputError, match="4 ranks on a machine with 0 GPUs"):
        check_device("cuda", 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert check_device(None, 2) == "cuda"
    with pytest.raises(InputError, match="4 ranks on a machine with 2 GPUs"):
        check_device(None, 4)
    with pytest.raises(InputError, match="choose their own devices"):
        check_device("cuda:1", 2)
    with pytest.raises(UnsupportedError, match="CUDA_VISIBLE_DEVICES="):
        check_device("cpu", 2)


@pytest.mark.parametrize("num_ranks", [0, 1, True, "2"])
def test_one_rank_is_no_group(num_ranks: Any) -> None:
    with pytest.raises(InputError, match="several ranks"):
        load("nowhere", num_ranks)


def test_a_model_that_is_not_there_is_refused_before_ranks_are_started(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="No configuration of a model"):
        load(str(tmp_path / "nothing"), 2, local_files_only=True)


def test_a_wire_carries_messages_and_tells_of_the_end() -> None:
    left, right = map(Wire, tcp_pair())
    left.send(["score", 0, [np.int64(3)], [[1, 2], None]])
    assert right.receive() == ["score", 0, [3], [[1, 2], None]]
    assert not right.is_closed()
    left.send("last words")
    left.close()
    assert right.receive() == "last words"
    assert right.is_closed()
    assert right.receive() is None
    right.send("to nobody")
    right.close()


def test_half_a_message_is_none_and_silence_has_an_end() -> None:
    near, far = tcp_pair()
    wire = Wire(far)
    near.sendall(b'["score"')
    near.close()
    assert wire.receive() is None
    wire.close()
    near, far = tcp_pair()
    with near:
        wire = Wire(far)
        assert wire.receive(0.05) is None
        wire.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = socket.create_connection(door.getsockname())
        return near, door.accept()[0]


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_watchdog_notices_what_does_not_end(
    is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "PERIOD", 0.01)
    told: list[str] = []
    heard = threading.Event()

    def hear(what: str) -> None:
        told.append(what)
        heard.set()

    guard = Watchdog(60.0 if is_alone else 0.0, hear, is_alone=lambda: is_alone)
    assert not heard.wait(0.1)  # nothing is under way
    guard.begin("score")
    assert heard.wait(30)
    assert told == ["rank 0 ended during score" if is_alone else "score took longer than 0 s"]
