"""The folder of a job, cut off at every byte, and folders of other jobs."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from forerun.base.errors import InputError
from forerun.batch.job_folder import BEGUN, JOURNAL, JobFolder

IDENTITY = {"input": "abc", "seed": 0}


def a_line(index: int, status: int = 200) -> dict[str, Any]:
    body = {"text": f"é {index}"} if status == 200 else {"error": {"message": "no"}}
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": f"{index}", "custom_id": f"c{index}", "response": response, "error": None}


def outputs(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in (path / "output.jsonl").open()]


def test_finished_out_of_order_written_in_order(tmp_path: Path) -> None:
    with JobFolder(tmp_path / "job", IDENTITY) as folder:
        for index in (2, 0, 1):
            folder.add(index, a_line(index))
        folder.write_output(3)
    assert outputs(tmp_path / "job") == ["c0", "c1", "c2"]
    assert not list((tmp_path / "job").glob("*.partial"))


def test_a_journal_cut_at_any_byte_loses_the_torn_line_alone(tmp_path: Path) -> None:
    with JobFolder(tmp_path, IDENTITY) as folder:
        for index in range(3):
            folder.add(index, a_line(index))
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        journal.write_bytes(whole[:size])
        with JobFolder(tmp_path, IDENTITY) as folder:
            num_whole = sum(end <= size for end in ends)
            assert folder.num_done == num_whole
            for index in range(num_whole, 3):
                folder.add(index, a_line(index))
        assert journal.read_bytes() == whole


def test_what_was_begun_is_kept_until_the_output_is_there(tmp_path: Path) -> None:
    with JobFolder(tmp_path, IDENTITY) as folder:
        assert folder.begun == {}
        folder.add(0, a_line(0))
        folder.keep({0: [[1]], 1: [[2, 3], []]})
    with JobFolder(tmp_path, IDENTITY) as folder:
        assert folder.begun == {1: [[2, 3], []]}  # 0 is done
        folder.keep({2: [[4]]})
    (tmp_path / BEGUN).write_bytes((tmp_path / BEGUN).read_bytes().replace(b"[4]", b"[5]"))
    with JobFolder(tmp_path, IDENTITY) as folder:
        assert folder.begun == {}  # damaged: begun again
        for index in (1, 2):
            folder.add(index, a_line(index))
        folder.write_output(3)
    assert not (tmp_path / BEGUN).exists()


def test_an_unreadable_line_is_as_good_as_not_there(tmp_path: Path) -> None:
    with JobFolder(tmp_path, IDENTITY) as folder:
        for index in range(3):
            folder.add(index, a_line(index))
    journal = tmp_path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"\0\0\0\n" + lines[2])
    with JobFolder(tmp_path, IDENTITY) as folder:
        assert [index in folder.done for index in range(3)] == [True, False, True]
        folder.add(1, a_line(1))
        folder.write_output(3)
    assert outputs(tmp_path) == ["c0", "c1", "c2"]


def test_failures_of_the_machine_may_be_done_again(tmp_path: Path) -> None:
    with JobFolder(tmp_path, IDENTITY) as folder:
        for index, status in enumerate((200, 400, 500)):
            folder.add(index, a_line(index, status))
        assert folder.num_failed(3) == 2
    with JobFolder(tmp_path, IDENTITY) as folder:
        assert folder.num_done == 3
    with JobFolder(tmp_path, IDENTITY, retries_failures=True) as folder:
        assert [index in folder.done for index in range(3)] == [True, True, False]
        folder.add(2, a_line(2))
        assert folder.num_failed(3) == 1
    with JobFolder(tmp_path, IDENTITY) as folder:  # the later line counts
        assert (folder.num_done, folder.num_failed(3)) == (3, 1)


def test_the_folder_of_another_job_is_refused_naming_what_differs(tmp_path: Path) -> None:
    JobFolder(tmp_path, IDENTITY).close()
    with pytest.raises(InputError, match=r"differs in seed. Received seed 1 instead of 0"):
        JobFolder(tmp_path, {**IDENTITY, "seed": 1})
    with pytest.raises(InputError, match="differs in input and seed"):
        JobFolder(tmp_path, {"input": "x", "seed": 1})
    with JobFolder(tmp_path, IDENTITY) as folder:
        folder.settle("fingerprint", "fp_1")
    with JobFolder(tmp_path, IDENTITY) as folder:
        folder.settle("fingerprint", "fp_1")
        with pytest.raises(InputError, match="differs in fingerprint"):
            folder.settle("fingerprint", "fp_2")


def test_the_start_of_a_job_is_kept(tmp_path: Path) -> None:
    with JobFolder(tmp_path, IDENTITY) as folder:
        folder.job["created"] = 5
        folder.settle("fingerprint", "fp")
    with JobFolder(tmp_path, IDENTITY) as folder:
        assert folder.job["created"] == 5


def test_folders_that_are_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(InputError, match=r"holds files and no batch job.*letter.txt"):
        JobFolder(tmp_path, IDENTITY)
    for place in (tmp_path / "letter.txt", tmp_path / "letter.txt" / "job"):
        with pytest.raises(InputError, match="cannot be written"):
            JobFolder(place, IDENTITY)
    assert (tmp_path / "letter.txt").read_text() == "hello"


def _is_refused(path: Path, answers: Any) -> None:
    try:
        JobFolder(path, IDENTITY)
        answers.put("")
    except InputError as error:
        answers.put(str(error))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with JobFolder(tmp_path, IDENTITY):
        process = context.Process(target=_is_refused, args=(tmp_path, answers))
        process.start()
        assert "Another process works on this job" in answers.get()
        process.join()
