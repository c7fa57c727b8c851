"""A whole job with answers made here: in order, once each, after any interruption."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun.base.errors import InputError
from forerun.batch.answerer import AnswerCounts, Answered, WorkerSettings
from forerun.batch.batch import JobSummary, batch
from forerun.batch.batch_input import Input
from forerun.batch.lines import BatchRequest, answered

SETTINGS = WorkerSettings(model="tiny")
NUM_LINES, BAD = 40, (0, 7, 39)


class Crash(Exception):
    """As if the process was killed."""


class Answers:
    """Answers a window of requests in a shuffled order; crashes after so many."""

    def __init__(self, crash_after: int = 10**9, seed: int = 0) -> None:
        self.crash_after = crash_after
        self.random = random.Random(seed)
        self.asked: list[int] = []
        self.fingerprint = "fp"

    def __call__(
        self,
        settings: WorkerSettings,
        on_ready: Callable[[str], None],
        requests: Iterator[BatchRequest],
    ) -> Iterator[Answered]:
        on_ready(self.fingerprint)
        window: list[BatchRequest] = []
        for num_answered in range(NUM_LINES):
            while len(window) < 6 and (request := next(requests, None)):
                window.append(request)
            if not window:
                return
            if num_answered == self.crash_after:
                raise Crash
            request = window.pop(self.random.randrange(len(window)))
            self.asked.append(request.index)
            body = {"text": f"{request.body['prompt']} {request.body['seed']}", "usage": {}}
            body["created"] = settings.created
            yield Answered(request.index, answered(request, body), AnswerCounts(new_tokens=2))


@pytest.fixture
def source(tmp_path: Path) -> Input:
    path = tmp_path / "in.jsonl"
    lines = [json.dumps({"prompt": f"p{i}"}) if i not in BAD else "{" for i in range(NUM_LINES)]
    path.write_text("\n".join(lines))
    return Input(path)


def run(source: Input, out: Path, answers: Answers, **options: Any) -> JobSummary:
    return batch(source, out, SETTINGS, answers=answers, **options)


def read(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "output.jsonl").open()]


def texts(lines: list[Any]) -> list[str | None]:
    return [line["response"] and line["response"]["body"]["text"] for line in lines]


def test_one_line_per_input_in_order_with_failures_by_number(source: Input, tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    summary = run(source, tmp_path / "out", Answers(), on_failure=lambda *t: told.append(t))
    lines = read(tmp_path / "out")
    assert len(lines) == NUM_LINES
    assert [i for i, text in enumerate(texts(lines)) if text is None] == list(BAD)
    assert all(text.startswith(f"p{i} ") for i, text in enumerate(texts(lines)) if text is not None)
    assert [line["error"]["line"] for line in lines if line["error"]] == [1, 8, 40]
    assert sorted(number for number, _ in told) == [1, 8, 40]
    assert (summary.num_new, summary.num_failed) == (NUM_LINES, 3)
    assert summary.counts.new_tokens == 2 * (NUM_LINES - 3)


def test_interrupted_at_every_place_and_resumed(source: Input, tmp_path: Path) -> None:
    run(source, tmp_path / "whole", Answers())
    for place in range(NUM_LINES - len(BAD)):
        out = tmp_path / f"out{place}"
        first, second = Answers(crash_after=place, seed=place), Answers(seed=99)
        with pytest.raises(Crash):
            run(source, out, first)
        assert not (out / "output.jsonl").exists()
        run(source, out, second)
        assert not {*first.asked} & {*second.asked}  # none twice
        assert sorted(first.asked + second.asked) == [i for i in range(NUM_LINES) if i not in BAD]
        assert texts(read(out)) == texts(read(tmp_path / "whole"))


def test_a_finished_job_asks_for_nothing(source: Input, tmp_path: Path) -> None:
    run(source, tmp_path / "out", Answers())
    again = Answers()
    summary = run(source, tmp_path / "out", again)
    assert again.asked == []
    assert (summary.num_new, summary.num_failed) == (0, 3)


def test_a_file_of_bad_lines_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{\n[]\n")
    answers = Answers(crash_after=0)
    summary = run(Input(tmp_path / "in.jsonl"), tmp_path / "out", answers)
    assert (summary.num_lines, summary.num_failed) == (2, 2)
    assert [line["error"]["line"] for line in read(tmp_path / "out")] == [1, 2]


def test_a_limited_job_can_be_carried_on(source: Input, tmp_path: Path) -> None:
    first, second = Answers(), Answers()
    run(replace(source, limit=10), tmp_path / "out", first)
    assert len(read(tmp_path / "out")) == 10
    run(source, tmp_path / "out", second)
    assert len(read(tmp_path / "out")) == NUM_LINES
    assert not {*first.asked} & {*second.asked}


def test_all_parts_of_a_job_have_its_start(source: Input, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        run(source, tmp_path / "out", Answers(crash_after=5))
    job = tmp_path / "out" / "job.json"
    job.write_text(json.dumps({**json.loads(job.read_text()), "created": 5}))
    run(source, tmp_path / "out", Answers())
    bodies = [line["response"]["body"] for line in read(tmp_path / "out") if line["response"]]
    assert {body["created"] for body in bodies[-10:]} == {5}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model": "other"}, "model"),
        ({"dtype": "float64"}, "dtype"),
        ({"quantize": "int8"}, "quantization"),
        ({"is_raw": True}, "raw prompts"),
    ],
)
def test_other_settings_are_another_job(
    source: Input, tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    run(source, tmp_path / "out", Answers())
    with pytest.raises(InputError, match=f"differs in {name}"):
        batch(source, tmp_path / "out", replace(SETTINGS, **change), answers=Answers())


def test_what_cannot_change_a_text_may_change(source: Input, tmp_path: Path) -> None:
    run(source, tmp_path / "out", Answers())
    settings = replace(SETTINGS, drafter="suffix", draft_length=0, max_batch=1)
    batch(source, tmp_path / "out", settings, workers=3, answers=Answers())


def test_another_input_seed_or_arithmetic_is_another_job(source: Input, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        run(source, tmp_path / "out", Answers(crash_after=5))
    with pytest.raises(InputError, match="differs in seed"):
        run(replace(source, seed=3), tmp_path / "out", Answers())
    other = Answers()
    other.fingerprint = "fp of another processor"
    with pytest.raises(InputError, match="differs in fingerprint"):
        run(source, tmp_path / "out", other)
    source.path.write_text('{"prompt": "x"}')
    with pytest.raises(InputError, match="differs in input"):
        run(source, tmp_path / "out", Answers())


def test_in_a_log_progress_and_failures_are_lines(
    source: Input, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(number: int, reason: str) -> None:
        print(f"failed: {number}", file=sys.stderr)

    run(source, tmp_path / "out", Answers(), on_failure=tell)
    told = capsys.readouterr().err
    assert "\r" not in told
    first, *failures, last = told.splitlines()
    assert first.startswith("0%|")
    assert sorted(failures) == ["failed: 1", "failed: 40", "failed: 8"]
    assert last.startswith("100%|")


def test_too_few_workers(source: Input, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too few workers"):
        run(source, tmp_path / "out", Answers(), workers=0)
