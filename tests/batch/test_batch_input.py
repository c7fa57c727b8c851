"""Lines of a batch job: what they are read as, and what is said of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.base.errors import InputError
from forerun.batch.batch_input import Input
from forerun.batch.lines import BadLine, BatchRequest, seed_of

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}]}


def openai_line(**changes: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY, **changes}


def read(path: Path, *lines: Any, **options: Any) -> list[BatchRequest | BadLine]:
    file = path / "in.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    file.write_bytes(b"\n".join(texts))
    return list(Input(file, **options))


def test_openai_lines_and_bare_ones(tmp_path: Path) -> None:
    openai, prompt, messages = read(
        tmp_path,
        openai_line(),
        {"prompt": "hello", "temperature": 0.5},
        {**BODY, "custom_id": "mine"},
        seed=7,
        defaults={"temperature": 0.1, "max_tokens": 5},
    )
    seed = seed_of(7, "a")
    assert openai == BatchRequest(
        0, 1, "a", CHAT, {**BODY, "seed": seed}
    )  # no defaults in OpenAI's
    assert prompt == BatchRequest(
        1,
        2,
        "line-2",
        None,
        {"temperature": 0.5, "max_tokens": 5, "prompt": "hello", "seed": seed_of(7, "line-2")},
    )
    assert isinstance(messages, BatchRequest)
    assert messages.custom_id == "mine"
    assert "custom_id" not in messages.body


def test_a_seed_of_the_line_itself_is_kept(tmp_path: Path) -> None:
    given, null = read(tmp_path, {"prompt": "a", "seed": 3}, {"prompt": "a", "seed": None})
    assert isinstance(given, BatchRequest)
    assert isinstance(null, BatchRequest)
    assert given.body["seed"] == 3
    assert null.body["seed"] == seed_of(0, "line-2")


def test_seeds_differ_between_lines_and_jobs_and_do_not_move_with_the_line(tmp_path: Path) -> None:
    first = [line.body["seed"] for line in read(tmp_path, openai_line(), {"prompt": "x"})]  # type: ignore[union-attr]
    moved = read(tmp_path, {"prompt": "x"}, openai_line())[1].body["seed"]  # type: ignore[union-attr]
    other = read(tmp_path, openai_line(), seed=1)[0].body["seed"]  # type: ignore[union-attr]
    assert first[0] == moved
    assert len({*first, other}) == 3


def test_empty_lines_are_none_and_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    lines = read(tmp_path, b"\xef\xbb\xbf" + b'{"prompt": "a"}', b"", b"  ", {"prompt": "b"}, b"")
    assert [(line.index, line.number) for line in lines] == [(0, 1), (1, 4)]
    assert all(isinstance(line, BatchRequest) for line in lines)
    assert len(Input(tmp_path / "in.jsonl")) == 2


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (b'{"prompt": ', "invalid_json_line", "Line 2 is not a valid JSON object: Expecting value"),
        (b"[1]", "invalid_json_line", "Line 2 is not a valid JSON object: it is no object."),
        (b'{"prompt": "\xff"}', "invalid_json_line", "it is no UTF-8"),
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json_line", "a key occurs twice"),
        ({"text": "a"}, "invalid_request", "either 'prompt' or 'messages'"),
        ({**BODY, "prompt": "a"}, "invalid_request", "it has both"),
        (openai_line(method="GET"), "invalid_method", 'Line 2 has an unknown method. Received "GE'),
        (openai_line(url="/v1/embeddings"), "invalid_url", "Use /v1/chat/completions, /v1/comp"),
        (openai_line(body="x"), "invalid_body", "has a body that is no object"),
        (openai_line(custom_id=None), "invalid_custom_id", "Received null"),
        (openai_line(custom_id=""), "invalid_custom_id", "has no custom_id"),
        (openai_line(seed=3), "invalid_request", "has keys that a batch line has not: 'seed'"),
        (openai_line(custom_id="first"), "duplicate_custom_id", "Line 2 repeats the custom_id of "),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_the_rest_goes_on(
    tmp_path: Path, line: Any, code: str, message: str
) -> None:
    first, bad, last = read(tmp_path, openai_line(custom_id="first"), line, {"prompt": "b"})
    assert isinstance(first, BatchRequest)
    assert isinstance(last, BatchRequest)
    assert isinstance(bad, BadLine)
    assert (bad.index, bad.number, bad.code) == (1, 2, code)
    assert message in bad.message


def test_a_limit_reads_the_first_lines(tmp_path: Path) -> None:
    lines = read(tmp_path, *({"prompt": str(i)} for i in range(5)), limit=2)
    assert [line.number for line in lines] == [1, 2]


def test_an_empty_file_and_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    with pytest.raises(InputError, match="holds no line"):
        len(Input(tmp_path / "empty.jsonl"))
    with pytest.raises(InputError, match="cannot be read"):
        Input(tmp_path / "none.jsonl").digest()
