"""Records survive the disk, and what is not one is told by its line."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from small import answer, cell, run

from forerun.base.errors import InputError
from forerun.measure.log import Log
from forerun.measure.machine import this_machine
from forerun.measure.records import (
    FILE,
    PACKED,
    Header,
    Interval,
    Prediction,
    Sample,
    Token,
    from_line,
    parse,
    read_records,
    to_line,
)


def header(**changes: object) -> Header:
    fields = {
        "target": "target",
        "max_new_tokens": 8,
        "seed": 0,
        "prompts": ["a"],
        "prompts_digest": "x",
        "machine": this_machine(),
    }
    return Header(**{**fields, **changes})  # type: ignore[arg-type]


RECORDS = [
    header(),
    run(cell(), answer()),
    run(cell(None, 0, peer="transformers"), answer(drafted=0)),
    run(cell(draft_length="auto", tree=16), answer()),
    Prediction(cell(), Interval(1.5, 1.2, 1.8), Interval(1.1, 1.0, 1.2)),
    Sample(cell(), "a", "Hello", [Token(" \u2603", "accepted", 0.25)]),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: type(each).__name__)
def test_a_record_is_the_same_after_writing_and_reading(record: object) -> None:
    line = to_line(record)  # type: ignore[arg-type]
    assert line.endswith("\n")
    assert "\n" not in line[:-1]
    assert from_line(line) == record


def test_a_line_from_before_a_field_was_added_gets_its_default() -> None:
    row = json.loads(to_line(RECORDS[1]))  # type: ignore[arg-type]
    assert row.pop("read_prompts") is True
    assert from_line(json.dumps(row)) == RECORDS[1]
    row["read_prompts"] = False
    assert from_line(json.dumps(row)) == replace(RECORDS[1], read_prompts=False)  # type: ignore[type-var]


def test_lines_come_back_by_kind_and_in_order(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for record in RECORDS:
        log.add(record)  # type: ignore[arg-type]
    found = read_records(tmp_path)
    assert found.headers == [RECORDS[0]]
    assert found.runs == RECORDS[1:4]
    assert found.predictions == [RECORDS[4]]
    assert found.samples == [RECORDS[5]]
    assert found == log.records


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row.pop("repeat"), "lacks repeat"),
        (lambda row: row.update(colour="red"), "unknown fields: colour"),
        (lambda row: row.update(kind="walk"), "none of header, run"),
        (lambda row: row.update(repeat=True), "it.repeat is 'True' and not int"),
        (lambda row: row.update(seconds="fast"), "it.seconds is 'fast' and not a number"),
        (lambda row: row["cell"].update(draft_length="some"), "it.cell.draft_length is 'some'"),
        (lambda row: row["answers"][0].update(rounds=1.5), r"it.answers\[0\].rounds is '1.5'"),
        (lambda row: row["answers"][0].update(drafted_by_round=3), "not a list"),
    ],
)
def test_a_line_that_is_no_record_says_why(change: object, said: str) -> None:
    row = json.loads(to_line(RECORDS[1]))  # type: ignore[arg-type]
    change(row)  # type: ignore[operator]
    with pytest.raises(ValueError, match=said):
        from_line(json.dumps(row))


def test_a_corrupt_line_is_reported_by_number_and_skipped_on_request(tmp_path: Path) -> None:
    lines = [to_line(record) for record in RECORDS]  # type: ignore[arg-type]
    lines[2] = lines[2][:40] + "\n"
    (tmp_path / FILE).write_text("".join(lines))
    for read in (read_records, Log):
        with pytest.raises(InputError, match=r"Line 3 of .*sweep.jsonl is corrupt .*skip-corrupt"):
            read(tmp_path)  # type: ignore[operator]
    found = read_records(tmp_path, skip_corrupt=True)
    assert list(found.skipped) == [3]
    assert found.runs == [RECORDS[1], RECORDS[3]]


def test_a_compressed_sweep_is_read_but_not_appended_to(tmp_path: Path) -> None:
    data = "".join(to_line(record) for record in RECORDS).encode()  # type: ignore[arg-type]
    packed = tmp_path / PACKED
    packed.write_bytes(gzip.compress(data))
    assert read_records(tmp_path) == parse(data, FILE)
    with pytest.raises(InputError, match=r"compressed sweep.*gunzip .*sweep.jsonl.gz"):
        Log(tmp_path)
    assert not (tmp_path / FILE).exists()
    for broken in (packed.read_bytes()[:-20], b"not gzip"):
        packed.write_bytes(broken)
        with pytest.raises(InputError, match="compressed sweep is corrupt"):
            read_records(tmp_path)


def test_a_line_that_was_being_written_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    whole = to_line(RECORDS[1])  # type: ignore[arg-type]
    (tmp_path / FILE).write_bytes(whole.encode() + b'{"kind": "run", "cell": "\xe2\x98')
    assert read_records(tmp_path).runs == [RECORDS[1]]
    log = Log(tmp_path)
    log.add(RECORDS[3])  # type: ignore[arg-type]
    assert read_records(tmp_path).runs == [RECORDS[1], RECORDS[3]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "other"}, "another target"),
        ({"max_new_tokens": 9}, "another number of new tokens"),
        ({"prompts_digest": "y"}, "another prompt set"),
        ({"seed": 1}, "another --seed"),
        ({"machine": replace(this_machine(), device="H200")}, "another --device"),
    ],
)
def test_another_sweep_in_the_same_folder_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    Log(tmp_path).begin(header())
    Log(tmp_path).begin(header(machine=this_machine(command="again")))
    with pytest.raises(InputError, match=said):
        Log(tmp_path).begin(header(**change))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Log(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="no sweep in that folder"):
        read_records(tmp_path / "nothing")
