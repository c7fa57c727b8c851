"""Reads the rows of Parquet files as lines of JSON, and writes output lines as a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.batch.lines import first_text

ROWS_AT_ONCE = 1000


def parquet_rows(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the row numbers, from 1, and the rows as JSON; null columns are left out.

    If `body` is a string it is parsed as JSON, because columns of mixed objects are often stored as
    strings.
    """
    parquet = _pyarrow_parquet()
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's own family, OSError and ValueError among it
        wrong = f"The input is no Parquet file ({str(error).splitlines()[0][:120]})."
        raise InputError(explain(wrong, repr(str(path)), "Check the file.")) from error
    number = 0
    with file:
        for table in file.iter_batches(ROWS_AT_ONCE):
            for row in table.to_pylist():
                number += 1
                yield number, _as_json(row)


def write_parquet(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Output lines as columns: custom_id, status_code, text, and body and error as JSON."""
    parquet = _pyarrow_parquet()
    import pyarrow

    texts = ("custom_id", "text", "body", "error")
    schema = pyarrow.schema(
        [("status_code", pyarrow.int32()), *((name, pyarrow.string()) for name in texts)]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        rows = map(_as_row, lines)
        while block := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(block, schema))


def _pyarrow_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        cure = 'Install it with: pip install "forerun[parquet]"'
        wrong = "Parquet needs pyarrow."
        raise MissingExtraError(explain(wrong, "no such module", cure)) from error
    return parquet


def _as_json(row: Mapping[str, Any]) -> bytes:
    given = {name: value for name, value in row.items() if value is not None}
    if isinstance(body := given.get("body"), str):
        with suppress(ValueError):  # whoever reads the row says that it is no object
            given["body"] = json.loads(body)
    return json.dumps(given, ensure_ascii=False, default=str).encode()


def _as_row(line: Mapping[str, Any]) -> dict[str, Any]:
    response = line["response"] or {}
    body = response.get("body")
    return {
        "custom_id": line["custom_id"],
        "status_code": response.get("status_code"),
        "text": first_text(body),
        "body": None if body is None else json.dumps(body, ensure_ascii=False),
        "error": None if line["error"] is None else json.dumps(line["error"], ensure_ascii=False),
    }
