"""Parquet in and out, and what is said where pyarrow is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from forerun.base.errors import InputError, MissingExtraError
from forerun.batch.batch_input import Input
from forerun.batch.lines import BatchRequest, answered, failed
from forerun.batch.parquet import write_parquet


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"forerun\[parquet\]"):
        len(Input(tmp_path / "in.parquet"))


def test_rows_are_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    messages = [{"role": "user", "content": "é"}]
    rows = [
        {"prompt": "a", "temperature": 0.5},
        {"custom_id": "b", "messages": messages},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": '{"prompt": "x"}'},
        {"custom_id": "d", "method": "POST", "url": "/v1/completions", "body": "{"},
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    first, second, third, fourth = Input(tmp_path / "in.parquet")
    assert isinstance(first, BatchRequest)
    assert {**first.body, "seed": 0} == {"prompt": "a", "temperature": 0.5, "seed": 0}
    assert first.custom_id == "line-1"
    assert isinstance(second, BatchRequest)
    assert second.body["messages"] == messages
    assert isinstance(third, BatchRequest)
    assert (third.url, third.body["prompt"]) == ("/v1/completions", "x")
    assert fourth.code == "invalid_body"  # type: ignore[union-attr]


def test_output_as_columns(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    request = BatchRequest(0, 1, "a", None, {"seed": 1})
    body = {"choices": [{"text": "hello"}], "usage": {}}
    lines = [answered(request, body), failed(request, "worker_died", "why")]
    write_parquet(tmp_path / "out.parquet", lines * 1001)
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(rows) == 2002
    assert rows[0] == {
        "custom_id": "a",
        "status_code": 200,
        "text": "hello",
        "body": json.dumps(body),
        "error": None,
    }
    assert rows[-1]["text"] is None
    assert json.loads(rows[-1]["error"])["message"] == "why"


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "in.parquet").write_text("hello")
    with pytest.raises(InputError, match="no Parquet file"):
        len(Input(tmp_path / "in.parquet"))
