"""Job folders, kept files and training shards on a disk that fails at any call: what is there
afterwards is refused or equal to what it should be."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from faults import KINDS, Died, Kind, failing
from forerun.base.errors import ForerunError, InputError
from forerun.batch.job_folder import JobFolder
from forerun.lean import kept_file
from forerun.train import shards
from forerun.train.shards import Spoken

COUNT = 4
NEVER = 10**9


def a_line(index: int) -> dict[str, Any]:
    response = {"status_code": 200, "request_id": "r", "body": {"text": f"é {index}" * 20}}
    return {"id": f"{index}", "custom_id": f"c{index}", "response": response, "error": None}


def work(path: Path) -> None:
    """A job from its beginning, or from where it is, to its end."""
    with JobFolder(path, {"input": "abc"}) as folder:
        folder.settle("fingerprint", "fp")
        for index in range(COUNT):
            if index not in folder.done:
                folder.add(index, a_line(index))
        folder.write_output(COUNT)


def num_calls(act: Any, *args: Any) -> int:
    with failing(NEVER, "error") as disk:
        act(*args)
    assert disk.num_calls > 3
    return disk.num_calls


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_goes_on_after_a_fault_at_any_call(kind: Kind, tmp_path: Path) -> None:
    count = num_calls(work, tmp_path / "whole")
    whole = (tmp_path / "whole" / "output.jsonl").read_bytes()
    assert len(whole.splitlines()) == COUNT
    for number in range(count):
        path = tmp_path / f"{number}"
        with failing(number, kind), suppress(ForerunError, Died):
            work(path)
            assert kind == "error", "a death is not survived"
        work(path)
        assert (path / "output.jsonl").read_bytes() == whole, number


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_resumes_outlives_faults_too(kind: Kind, tmp_path: Path) -> None:
    def begin(path: Path) -> None:
        with JobFolder(path, {"input": "abc"}) as folder:
            folder.add(2, a_line(2))
            folder.add(0, a_line(0))

    begin(tmp_path / "whole")
    count = num_calls(work, tmp_path / "whole")
    whole = (tmp_path / "whole" / "output.jsonl").read_bytes()
    for number in range(count):
        path = tmp_path / f"{number}"
        begin(path)
        with failing(number, kind), suppress(ForerunError, Died):
            work(path)
        work(path)
        assert (path / "output.jsonl").read_bytes() == whole, number


class Tree(NamedTuple):
    """What a kept file holds here."""

    name: str
    values: Any


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_old", [True, False])
def test_a_kept_file_is_the_old_one_or_the_new_one(
    kind: Kind, has_old: bool, tmp_path: Path
) -> None:
    old, new = (Tree(name, np.arange(9000) + len(name)) for name in ("old", "newer"))

    def names(file: Path) -> str:
        try:
            tree = kept_file.read(file, Tree)
        except (OSError, ValueError, LookupError):
            return "refused"
        assert np.array_equal(tree.values, (old if tree.name == "old" else new).values)
        return tree.name

    count = num_calls(kept_file.write, tmp_path / "whole", new)
    for number in range(count):
        file = tmp_path / f"{number}"
        if has_old:
            kept_file.write(file, old)
        with failing(number, kind), suppress(OSError, Died):
            kept_file.write(file, new)
        assert names(file) in (("old", "newer") if has_old else ("refused", "newer")), number
        if kind == "error":
            assert not list(tmp_path.glob(f"*{kept_file.UNFINISHED}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_is_there_or_not(kind: Kind, tmp_path: Path) -> None:
    spoken = [
        Spoken(np.arange(40, dtype=np.int32) + n, np.arange(40) > 20, f"group {n}")
        for n in range(3)
    ]
    count = num_calls(shards.write, tmp_path / "shard-00000.npz", spoken)
    for number in range(count):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with failing(number, kind), suppress(OSError, Died):
            shards.write_shard(folder, spoken)
        for file in shards.list_shards(folder):
            found = shards.read(file)
            assert [text.tokens.tolist() for text in found] == [
                text.tokens.tolist() for text in spoken
            ]
        shards.write_shard(folder, spoken)
        assert len(shards.read(shards.list_shards(folder)[-1])) == 3


JOURNALS: dict[str, bytes] = {
    "a list": b"[]\n",
    "nonsense": b"\0\xff\n",
    "deep": b"[" * 100_000 + b"\n",
    "an index that is a list": b'{"index": [1], "line": {"error": null}}\n',
    "an index that is true": b'{"index": true, "line": {}}\n',
    "an index below zero": b'{"index": -1, "line": {"error": {"message": "", "code": ""}}}\n',
    "a line that is a number": b'{"index": 1, "line": 5}\n',
    "a line without words": b'{"index": 1, "line": {"error": {}}}\n',
    "a response that is a text": b'{"index": 1, "line": {"error": null, "response": "x"}}\n',
    "a wrong checksum": b'{"index": 1, "line": {"error": {"message": "", "code": ""}}, "crc": 1}\n',
}


@pytest.mark.parametrize("kind", JOURNALS)
@pytest.mark.parametrize("retries", [True, False])
def test_damage_in_a_journal_is_told_and_answered_again(
    kind: str, retries: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(tmp_path)
    whole = (tmp_path / "output.jsonl").read_bytes()
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], JOURNALS[kind], *lines[2:]]))
    with JobFolder(tmp_path, {"input": "abc"}, retries_failures=retries) as folder:
        assert folder.num_done == COUNT - 1
    assert "1 line of" in (told := capsys.readouterr().err)
    assert "answered again" in told
    work(tmp_path)
    assert (tmp_path / "output.jsonl").read_bytes() == whole


def test_a_text_that_was_changed_is_found(tmp_path: Path) -> None:
    work(tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace("é 2".encode(), "é 3".encode(), 1))
    with JobFolder(tmp_path, {"input": "abc"}) as folder:
        assert 2 not in folder.done


@pytest.mark.parametrize(
    "content", [b"", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"created": "x"}', b'{"a": 1']
)
def test_a_damaged_job_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    work(tmp_path)
    (tmp_path / "job.json").write_bytes(content)
    with pytest.raises(InputError, match=r"job\.json of the output folder is damaged"):
        work(tmp_path)


@pytest.mark.parametrize("name", ["job.json", "journal.jsonl", "output.jsonl"])
def test_a_folder_where_a_file_should_be(name: str, tmp_path: Path) -> None:
    work(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"cannot be written|damaged"):
        work(tmp_path)


def test_journals_of_earlier_versions_are_read(tmp_path: Path) -> None:
    work(tmp_path)
    journal = tmp_path / "journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    plain = [json.dumps({"index": entry["index"], "line": entry["line"]}) for entry in entries]
    journal.write_text("\n".join(plain) + "\n")
    with JobFolder(tmp_path, {"input": "abc"}) as folder:
        assert folder.num_done == COUNT
